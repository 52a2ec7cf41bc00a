#include "comm/rendezvous/group_rendezvous.h"

#include <thread>

#include <gtest/gtest.h>

#include "comm/base/error.h"

namespace muster::comm {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

// Runs body(rank, rendezvous) on `ranks` threads.
void run(int ranks, const std::function<void(int, Rendezvous&)>& body) {
  auto all = make_thread_rendezvous(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(r, *all[r]); });
  for (auto& t : threads) t.join();
}

TEST(GroupRendezvous, GroupsExchangeAmongThemselvesAsOftenAsEachNeeds) {
  run(5, [](int rank, Rendezvous& world) {
    const std::vector<int> mine = rank == 1 || rank == 4 ? std::vector<int>{1, 4} : std::vector<int>{0, 2, 3};
    GroupRendezvous group(world, mine, soon());
    EXPECT_EQ(mine[group.place().rank], rank);
    EXPECT_EQ(group.place().world_size, static_cast<int>(mine.size()));
    for (int round = 0; round < (mine.size() == 2 ? 1 : 4); ++round) {
      const auto got = group.exchange(std::to_string(10 * round + rank), soon());
      ASSERT_EQ(got.size(), mine.size());
      for (size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(got[i], std::to_string(10 * round + mine[i]));
    }
    group.finish(soon());
    EXPECT_EQ(world.exchange("after", soon()), std::vector<std::string>(5, "after"));
  });
}

TEST(GroupRendezvous, AMemberThatHasLeftIsNamed) {
  run(2, [](int rank, Rendezvous& world) {
    GroupRendezvous group(world, {0, 1}, soon());
    if (rank == 1) {
      group.finish(soon());
      return;
    }
    try {
      (void)group.exchange("still here", soon());
      ADD_FAILURE() << "no error";
    } catch (const PeerError& e) {
      EXPECT_EQ(e.context().rank, 1);
    }
    group.finish(soon());
  });
}

TEST(GroupRendezvous, EmptyMessagesArriveEmpty) {
  run(3, [](int, Rendezvous& world) {
    GroupRendezvous group(world, {0, 1, 2}, soon());
    EXPECT_EQ(group.exchange("", soon()), std::vector<std::string>(3));
    group.finish(soon());
  });
}

}  // namespace
}  // namespace muster::comm
