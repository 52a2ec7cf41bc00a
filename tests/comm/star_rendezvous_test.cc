#include "comm/rendezvous/star_rendezvous.h"

#include <thread>

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::comm {
namespace {

// A listening socket of the test's own, or, closed again, a port that was free a moment ago.
struct Listener {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    listen(fd, 1);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(fd); }
};

int free_port() { return Listener().port; }

Bootstrap bootstrap(int rank, int world_size, int port, const std::string& token = "job") {
  Bootstrap b;
  b.kind = Bootstrap::Kind::kStar;
  b.place = Place{rank, world_size, rank, world_size, 0, 1, "static"};
  b.master_address = "127.0.0.1";
  b.master_port = port;
  b.port_variable = "MUSTER_MASTER_PORT";
  b.token = token;
  return b;
}

Deadline soon(int ms = 10'000) { return Deadline::after(milliseconds(ms)); }

std::string failure_of(Rendezvous& rendezvous, Deadline deadline) {
  try {
    (void)rendezvous.exchange("x", deadline);
    return "no failure";
  } catch (const PeerError& error) {
    return error.what();
  }
}

class Star : public testing::TestWithParam<int> {};

TEST_P(Star, EverybodyHearsEverybody) {
  const int world_size = GetParam(), port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([=] {
      // Rank 0 comes last: the others must wait for its port.
      if (rank == 0) std::this_thread::sleep_for(milliseconds(100));
      const auto rendezvous = make_star_rendezvous(bootstrap(rank, world_size, port));
      for (int round = 0; round < 3; ++round) {
        const auto table = rendezvous->exchange(fmt::format("{}.{}", rank, round), soon());
        ASSERT_EQ(table.size(), static_cast<size_t>(world_size));
        for (int other = 0; other < world_size; ++other) EXPECT_EQ(table[other], fmt::format("{}.{}", other, round));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(Sizes, Star, testing::Values(1, 2, 3, 4, 7));

TEST(StarRendezvous, ATakenPortIsNamedWithItsVariable) {
  const Listener taken;
  try {
    make_star_rendezvous(bootstrap(0, 2, taken.port));
    FAIL() << "bound a taken port";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("MUSTER_MASTER_PORT: cannot listen on port {}", taken.port)));
  }
}

TEST(StarRendezvous, AllHearWhoIsMissing) {
  const int port = free_port();
  const auto zero = make_star_rendezvous(bootstrap(0, 4, port)), two = make_star_rendezvous(bootstrap(2, 4, port));
  std::string second;
  std::thread other([&] { second = failure_of(*two, soon(1000)); });
  const std::string first = failure_of(*zero, soon(1000));
  other.join();
  EXPECT_THAT(first, testing::HasSubstr("did not arrive before the deadline: rank 1 3"));
  EXPECT_THAT(second, testing::HasSubstr("rank 1 3"));
}

TEST(StarRendezvous, WithoutRankZeroTheOthersGiveUp) {
  const auto one = make_star_rendezvous(bootstrap(1, 2, free_port()));
  EXPECT_THAT(failure_of(*one, soon(100)), testing::HasSubstr("rank 0: no answer at tcp://127.0.0.1:"));
}

TEST(StarRendezvous, ARankOfAnotherJobIsTurnedAwayAndTheJobGoesOn) {
  const int port = free_port();
  const auto zero = make_star_rendezvous(bootstrap(0, 2, port)), one = make_star_rendezvous(bootstrap(1, 2, port));
  const auto stranger = make_star_rendezvous(bootstrap(1, 2, port, "another"));
  std::string answer;
  std::thread strange([&] { answer = failure_of(*stranger, soon()); });
  std::thread late([&] {
    strange.join();
    EXPECT_EQ(one->exchange("b", soon()).at(0), "a");
  });
  EXPECT_EQ(zero->exchange("a", soon()).at(1), "b");
  late.join();
  EXPECT_THAT(answer, testing::HasSubstr("belongs to another job"));
}

TEST(StarRendezvous, WorldSizesThatDifferAreNamed) {
  const int port = free_port();
  const auto zero = make_star_rendezvous(bootstrap(0, 2, port)), one = make_star_rendezvous(bootstrap(1, 3, port));
  std::string answer;
  std::thread other([&] { answer = failure_of(*one, soon()); });
  EXPECT_THAT(failure_of(*zero, soon()), testing::HasSubstr("rank 1 says world size 3, rank 0 says 2"));
  other.join();
  EXPECT_THAT(answer, testing::HasSubstr("world size 3"));
}

TEST(StarRendezvous, BytesOfAnotherProgramAreIgnored) {
  const int port = free_port();
  const auto zero = make_star_rendezvous(bootstrap(0, 2, port)), one = make_star_rendezvous(bootstrap(1, 2, port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_GT(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 0);
  std::thread other([&] { EXPECT_EQ(one->exchange("b", soon()).size(), 2u); });
  EXPECT_EQ(zero->exchange("a", soon()).size(), 2u);
  other.join();
  close(fd);
}

}  // namespace
}  // namespace muster::comm
