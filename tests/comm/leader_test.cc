// The leader's judgement, without sockets and with a clock of the test's own.

#include "comm/control/leader.h"

#include <gmock/gmock.h>

#include "comm/base/error.h"

namespace muster::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Type = ControlMessage::Type;

class LeaderTest : public testing::Test {
 protected:
  void make(int world_size) {
    sent_.resize(world_size);
    leader_ = std::make_unique<Leader>(world_size, ControlTiming{}, now_, [this](int rank, const ControlMessage& m) {
      if (m.type != Type::kBeat) sent_[rank].push_back(m);
    });
    for (int rank = 0; rank < world_size; ++rank) say(rank, {Type::kHello, rank, 0, "host", {}});
  }
  void say(int rank, const ControlMessage& m) { leader_->on_message(rank, m, now_); }
  void give(int rank, int64_t sequence, const std::string& text, int wait_ms = 60'000) {
    say(rank, {Type::kGive, sequence, wait_ms, text, {}});
  }
  void fail(int rank, int code, bool primary, const std::string& line) { say(rank, {Type::kFailure, code, primary, line, {}}); }
  void gone(int rank, int code) { say(rank, {Type::kGone, code, 0, "", {}}); }
  // Time passes while the ranks named are alive.
  void pass(int ms, const std::vector<int>& alive) {
    for (int at = 0; at < ms; at += 100) {
      now_ += milliseconds(100);
      for (const int rank : alive) say(rank, {Type::kBeat, 0, 0, "", {}});
      leader_->on_tick(now_);
    }
  }
  std::vector<Type> types(int rank) const {
    std::vector<Type> out;
    for (const auto& m : sent_[rank]) out.push_back(m.type);
    return out;
  }
  ControlMessage last(int rank) const { return sent_[rank].empty() ? ControlMessage{} : sent_[rank].back(); }

  Leader::Time now_ = Clock::now();
  std::unique_ptr<Leader> leader_;
  std::vector<std::vector<ControlMessage>> sent_;
};

TEST_F(LeaderTest, HandsOutTheTableWhenTheLastRankGives) {
  make(3);
  give(2, 0, "c");
  give(0, 0, "a");
  EXPECT_TRUE(sent_[0].empty());
  give(1, 0, "b");
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(last(rank).table, ElementsAre("a", "b", "c"));
  give(1, 1, "B");
  give(0, 1, "A");
  give(2, 1, "C");
  EXPECT_EQ(last(0).number, 1);
  EXPECT_THAT(last(2).table, ElementsAre("A", "B", "C"));
}

TEST_F(LeaderTest, EndsWellWhenAllAreGone) {
  make(2);
  gone(0, 0);
  EXPECT_FALSE(leader_->ended());
  gone(1, 0);
  EXPECT_TRUE(leader_->ended());
  EXPECT_THAT(types(1), ElementsAre(Type::kEnd));
  EXPECT_EQ(last(1).number, 0);
}

TEST_F(LeaderTest, TheFirstCauseWins) {
  make(3);
  fail(1, 139, true, "worker killed by signal 11 (SIGSEGV)");
  fail(2, 1, true, "something later");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(types(rank), ElementsAre(Type::kStop));
    EXPECT_EQ(last(rank).number, 139);
    EXPECT_EQ(last(rank).text, "rank 1 on host: worker killed by signal 11 (SIGSEGV)");
  }
  for (int rank = 0; rank < 3; ++rank) gone(rank, 1);
  EXPECT_EQ(last(0).type, Type::kEnd);
  EXPECT_EQ(last(0).number, 139);
}

TEST_F(LeaderTest, AConsequenceWaitsForItsCause) {
  make(2);
  fail(0, kExitPeer, false, "all_reduce #3: rank 1: connection lost");
  pass(300, {0, 1});
  EXPECT_TRUE(sent_[0].empty());
  fail(1, 137, true, "worker killed by signal 9 (SIGKILL)");
  EXPECT_THAT(last(0).text, HasSubstr("rank 1 on host: worker killed"));
}

TEST_F(LeaderTest, AConsequenceWithoutACauseIsTheCause) {
  make(2);
  fail(0, kExitPeer, false, "all_reduce #3: rank 1: no answer");
  pass(700, {0, 1});
  EXPECT_EQ(last(1).number, kExitPeer);
  EXPECT_THAT(last(1).text, HasSubstr("rank 0 on host: all_reduce #3"));
}

TEST_F(LeaderTest, ASilentMemberIsWaitedForAndThenNamed) {
  make(3);
  pass(1000, {0, 1, 2});
  pass(500, {0, 2});
  fail(0, kExitPeer, false, "all_reduce #3: rank 1: connection lost");
  pass(700, {0, 2});
  EXPECT_TRUE(sent_[0].empty()) << "the lost agent is the cause, not its consequence";
  pass(800, {0, 2});
  EXPECT_THAT(last(0).text, HasSubstr("rank 1 on host: its agent is lost"));
}

TEST_F(LeaderTest, ALostMemberDoesNotKeepTheOthers) {
  make(2);
  pass(1600, {0});
  EXPECT_EQ(last(0).type, Type::kStop);
  gone(0, 143);
  EXPECT_TRUE(leader_->ended());
}

TEST_F(LeaderTest, ItsOwnStandstillIsNobodysFault) {
  make(2);
  now_ += milliseconds(60'000);
  leader_->forgive(milliseconds(60'000));
  leader_->on_tick(now_);
  EXPECT_TRUE(sent_[0].empty());
}

TEST_F(LeaderTest, ALateMemberOfAStoppingJobIsStoppedToo) {
  sent_.resize(2);
  leader_ =
      std::make_unique<Leader>(2, ControlTiming{}, now_, [this](int rank, const ControlMessage& m) { sent_[rank].push_back(m); });
  say(0, {Type::kHello, 0, 0, "host", {}});
  fail(0, 2, true, "refused");
  EXPECT_TRUE(sent_[1].empty());
  say(1, {Type::kHello, 1, 0, "host", {}});
  EXPECT_EQ(last(1).type, Type::kStop);
}

TEST_F(LeaderTest, NamesWhoDidNotArriveInTime) {
  make(4);
  give(0, 0, "a", 1000);
  give(3, 0, "d", 5000);
  pass(1200, {0, 1, 2, 3});
  for (const int rank : {0, 3}) {
    EXPECT_EQ(last(rank).type, Type::kMissing);
    EXPECT_EQ(last(rank).other, 1);
    EXPECT_THAT(last(rank).text, HasSubstr("rank 1 2"));
  }
  EXPECT_TRUE(sent_[1].empty());
  give(1, 0, "b");
  EXPECT_EQ(last(1).type, Type::kMissing) << "too late: the others have given up";
}

TEST_F(LeaderTest, AWorkerThatEndedWellIsMissedWhereOthersWait) {
  make(2);
  give(0, 0, "a");
  gone(1, 0);
  EXPECT_EQ(last(0).type, Type::kStop);
  EXPECT_THAT(last(0).text, HasSubstr("rank 1 on host: worker ended (exit code 0) before exchange #0, in which rank 0 waits"));
}

TEST_F(LeaderTest, AWorkerThatFailedIsNotMissedOnTop) {
  make(2);
  fail(1, kExitPeer, false, "all_reduce #7: rank 0: connection lost");
  gone(1, kExitPeer);
  give(0, 0, "a");
  EXPECT_TRUE(sent_[0].empty());
  pass(700, {0, 1});
  EXPECT_EQ(last(0).number, kExitPeer);
  EXPECT_THAT(last(0).text, HasSubstr("all_reduce #7"));
}

TEST_F(LeaderTest, RanksInDifferentExchangesAreNamed) {
  make(2);
  give(0, 0, "a");
  give(1, 4, "b");
  EXPECT_THAT(last(0).text, HasSubstr("rank 1 on host: is in exchange #4, the others are in #0"));
}

TEST_F(LeaderTest, TheEndComesEvenIfAMemberNeverSaysGone) {
  make(2);
  fail(0, 5, true, "x");
  gone(0, 5);
  pass(5900, {0, 1});
  EXPECT_FALSE(leader_->ended());
  pass(300, {0, 1});
  EXPECT_TRUE(leader_->ended());
}

TEST_F(LeaderTest, MessagesFromNowhereAreIgnored) {
  make(2);
  say(-1, {Type::kGive, 0, 0, "x", {}});
  say(2, {Type::kFailure, 1, 1, "x", {}});
  EXPECT_TRUE(sent_[0].empty());
}

}  // namespace
}  // namespace muster::comm
