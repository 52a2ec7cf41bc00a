// Server and members over real sockets, N ranks as N threads.

#include "comm/control/control_plane.h"

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "comm/control/frames.h"

namespace muster::comm {
namespace {

using Type = ControlMessage::Type;

// Turns until a message comes or ten seconds pass.
std::optional<ControlMessage> next_message(ControlMember& member) {
  const auto deadline = Deadline::after(milliseconds(10'000));
  while (!deadline.expired()) {
    zmq::pollitem_t item{member.socket().handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, 20);
    auto messages = member.receive();
    member.on_tick(Clock::now());
    if (!messages.empty()) return messages.front();
  }
  return std::nullopt;
}

std::vector<std::string> exchange(ControlMember& member, int64_t sequence, const std::string& mine) {
  member.send({Type::kGive, sequence, 10'000, mine, {}});
  const auto answer = next_message(member);
  return answer && answer->type == Type::kTable && answer->number == sequence ? answer->table : std::vector<std::string>{};
}

class Members : public testing::TestWithParam<int> {};

TEST_P(Members, ExchangeAndEndTogether) {
  const int world_size = GetParam();
  ControlServer server(world_size, true);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      ControlMember member("127.0.0.1", server.port(), server.public_key(), rank, "host");
      for (int round = 0; round < 5; ++round) {
        const auto table = exchange(member, round, fmt::format("{}.{}", rank, round));
        ASSERT_EQ(table.size(), static_cast<size_t>(world_size));
        for (int other = 0; other < world_size; ++other) EXPECT_EQ(table[other], fmt::format("{}.{}", other, round));
      }
      member.send({Type::kGone, 0, 0, "", {}});
      const auto end = next_message(member);
      ASSERT_TRUE(end);
      EXPECT_EQ(end->type, Type::kEnd);
    });
  }
  for (auto& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(Sizes, Members, testing::Values(1, 2, 3, 4, 7));

TEST(ControlPlane, ALostMemberIsNamed) {
  ControlServer server(2, true);
  ControlMember first("127.0.0.1", server.port(), server.public_key(), 0, "host");
  {
    ControlMember second("127.0.0.1", server.port(), server.public_key(), 1, "other");
    second.send({Type::kGive, 0, 10'000, "x", {}});
  }
  const auto stop = next_message(first);
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->type, Type::kStop);
  EXPECT_THAT(stop->text, testing::HasSubstr("rank 1 on other: its agent is lost"));
}

TEST(ControlPlane, AMemberNoticesThatTheLeaderIsGone) {
  auto server = std::make_unique<ControlServer>(1, true);
  ControlMember member("127.0.0.1", server->port(), server->public_key(), 0, "host");
  EXPECT_EQ(exchange(member, 0, "x").size(), 1u);
  server.reset();
  const auto deadline = Deadline::after(milliseconds(10'000));
  while (!member.leader_lost(Clock::now()) && !deadline.expired()) {
    std::this_thread::sleep_for(milliseconds(20));
    member.receive();
    member.on_tick(Clock::now());
  }
  EXPECT_TRUE(member.leader_lost(Clock::now()));
}

TEST(ControlPlane, AStrangerWithoutTheKeyIsNotHeard) {
  ControlServer server(1, true);
  char other_public[41], other_secret[41];
  ASSERT_EQ(zmq_curve_keypair(other_public, other_secret), 0);
  ControlMember stranger("127.0.0.1", server.port(), other_public, 0, "evil");
  stranger.send({Type::kFailure, 1, 1, "lies", {}});
  ControlMember member("127.0.0.1", server.port(), server.public_key(), 0, "host");
  EXPECT_EQ(exchange(member, 0, "x").size(), 1u) << "the job goes on";
  EXPECT_THROW(ControlMember("127.0.0.1", server.port(), "short", 0, "host"), PeerError);
}

TEST(ControlPlane, GarbageAndOversizedMessagesDoNotEndTheJob) {
  ControlServer server(2, true);
  ControlMember first("127.0.0.1", server.port(), server.public_key(), 0, "host");
  ControlMember second("127.0.0.1", server.port(), server.public_key(), 1, "host");
  first.socket().send(zmq::str_buffer("garbage"), zmq::send_flags::dontwait);
  first.socket().send(zmq::str_buffer("two"), zmq::send_flags::sndmore);
  first.socket().send(zmq::str_buffer("parts"), zmq::send_flags::dontwait);
  {
    // A third connection, since an oversized message costs the sender its own.
    ControlMember loud("127.0.0.1", server.port(), server.public_key(), 7, "host");
    loud.send({Type::kGive, 0, 0, std::string(kLargestGive + 8192, 'x'), {}});
  }
  std::thread other([&] { EXPECT_EQ(exchange(second, 0, "b").size(), 2u); });
  EXPECT_EQ(exchange(first, 0, "a").size(), 2u);
  other.join();
}

}  // namespace
}  // namespace muster::comm
