#include <thread>

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {
namespace {

const auto kLong = milliseconds(60'000);

TEST(SingleRendezvous, GivesBackWhatItGets) {
  const auto rendezvous = make_single_rendezvous();
  EXPECT_EQ(rendezvous->place().world_size, 1);
  EXPECT_EQ(rendezvous->place().source, "single");
  EXPECT_THAT(rendezvous->exchange(std::string_view("a\0b", 3), Deadline::after(kLong)),
              testing::ElementsAre(std::string("a\0b", 3)));
}

TEST(ThreadRendezvous, EveryRoundHasEverybodysBytesInOrder) {
  constexpr int kRanks = 5, kRounds = 50;
  const auto meetings = make_thread_rendezvous(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        const auto all = meetings[rank]->exchange(fmt::format("{}/{}", rank, round), Deadline::after(kLong));
        ASSERT_EQ(all.size(), size_t{kRanks});
        for (int other = 0; other < kRanks; ++other) EXPECT_EQ(all[other], fmt::format("{}/{}", other, round));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadRendezvous, NamesTheRanksThatDoNotCome) {
  const auto meetings = make_thread_rendezvous(3);
  EXPECT_EQ(meetings[2]->place().rank, 2);
  try {
    (void)meetings[1]->exchange("", Deadline::after(milliseconds(50)));
    FAIL() << "met nobody";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.context().rank, 0);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 2"));
  }
  EXPECT_THROW((void)meetings[0]->exchange("", Deadline::after(kLong)), PeerError) << "the rendezvous is over";
}

}  // namespace
}  // namespace muster::comm
