#include "sharding/pipeline/schedule/simulator.h"

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

TEST(Simulator, AddsUpOneRank) {
  const auto t = simulate(make_schedule({"1f1b", 1, 3}), {.forward = 2, .backward_input = 3, .backward_weight = 0.5});
  EXPECT_DOUBLE_EQ(t.step, 16.5);
  EXPECT_DOUBLE_EQ(t.busy, 16.5);
  EXPECT_DOUBLE_EQ(t.bubble(), 0);
}

// Rank 0: F 0-1, waits, B 6-8. Rank 1: receives at 1 + 1.5, F to 3.5, B to 5.5. Back at 7.
TEST(Simulator, MessagesTakeTheirTime) {
  const Schedule s = make_schedule({"1f1b", 2, 1});
  const auto t = simulate(s, {.message = 1.5});
  EXPECT_DOUBLE_EQ(t.step, 9);
  EXPECT_DOUBLE_EQ(t.busy, 3);
  EXPECT_DOUBLE_EQ(t.bubble(), 2);
  EXPECT_DOUBLE_EQ(t.idle_share(), 6.0 / 9);
  EXPECT_EQ(to_text(s.actions[1][1]), "1RECV_F0");
  EXPECT_DOUBLE_EQ(t.spans[1][1].begin, 0);
  EXPECT_DOUBLE_EQ(t.spans[1][1].end, 2.5);
}

// A send does not hold its rank up, and a message that is early waits.
TEST(Simulator, SendsAreAsynchronous) {
  const Schedule s = make_schedule({"gpipe", 2, 4});
  const auto t = simulate(s, {.message = 10});
  EXPECT_DOUBLE_EQ(t.spans[0][7].begin, 3);  // 0F3
  EXPECT_EQ(to_text(s.actions[0][7]), "0F3");
}

TEST(Simulator, ZeroBubbleNeverTakesLongerThan1F1B) {
  for (const int p : {2, 3, 4, 8})
    for (const int m : {p, 2 * p, 3 * p})
      for (const double weight : {0.6, 1.0, 1.3}) {
        const Costs half{.forward = 0.5, .backward_input = 0.5, .backward_weight = weight / 2}, whole{.backward_weight = weight};
        EXPECT_LT(simulate(make_schedule({"zbv", p, m}), half).step, simulate(make_schedule({"1f1b", p, m}), whole).step)
            << p << " " << m;
      }
}

TEST(Simulator, RefusesADeadlock) {
  Schedule s = make_schedule({"1f1b", 2, 1});
  std::swap(s.actions[1][1], s.actions[1][4]);  // the gradient would be sent before its activation comes
  s.actions[0].insert(s.actions[0].begin(), {Kind::kRecvGradient, 0, 0});
  EXPECT_THROW(simulate(s, {}), CheckError);
}

}  // namespace
}  // namespace muster::sharding::pipeline
