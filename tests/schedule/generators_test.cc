#include "sharding/pipeline/schedule/generators.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <fmt/ranges.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/simulator.h"
#include "sharding/pipeline/schedule/validator.h"

namespace muster::sharding::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The computation of one rank, as text.
std::string work_of(const Schedule& s, int rank) {
  std::vector<std::string> out;
  for (const Action& a : s.actions[rank])
    if (cost_of({}, a.kind) > 0) out.push_back(to_text(a));
  return fmt::format("{}", fmt::join(out, " "));
}

std::string all_of(const Schedule& s, int rank) {
  std::vector<std::string> out;
  for (const Action& a : s.actions[rank]) out.push_back(to_text(a));
  return fmt::format("{}", fmt::join(out, " "));
}

std::string refusal(const ScheduleRequest& request) {
  try {
    make_schedule(request);
    return "accepted";
  } catch (const InputError& error) {
    return error.what();
  }
}

double idle_percent(const ScheduleRequest& request, const Costs& costs = {}) {
  return 100 * simulate(make_schedule(request), costs).idle_share();
}

TEST(Generators, EveryCombinationIsValid) {
  for (const auto& name : schedule_names()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
        for (const int chunks : {0, 1, 2, 3, 4, 5}) {
          if (name == "zbv" && chunks != 0 && chunks != 2) continue;
          const Schedule s = make_schedule({name, ranks, micro_batches, chunks});
          const Verdict verdict = validate(s);
          ASSERT_TRUE(verdict.ok()) << name << " p " << ranks << " m " << micro_batches << " v " << chunks << ": "
                                    << verdict.reason;
        }
      }
    }
  }
}

TEST(Generators, OneForwardOneBackward) {
  const Schedule s = make_schedule({"1f1b", 2, 3});
  EXPECT_EQ(work_of(s, 0), "0F0 0F1 0B0 0F2 0B1 0B2");
  EXPECT_EQ(work_of(s, 1), "1F0 1B0 1F1 1B1 1F2 1B2");
}

TEST(Generators, MessagesFollowTheWork) {
  const Schedule s = make_schedule({"1f1b", 2, 2});
  EXPECT_EQ(all_of(s, 0), "0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD");
  EXPECT_EQ(all_of(s, 1), "1UNSHARD 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD");
}

TEST(Generators, NoMessageAtTheTurnOfTheV) {
  const Schedule s = make_schedule({"zbv", 2, 1});
  EXPECT_THAT(s.rank_of_stage, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(all_of(s, 1),
            "1UNSHARD 1RECV_F0 1F0 2UNSHARD 2F0 2SEND_F0 2RECV_B0 2I0 1I0 1SEND_B0 1W0 1REDUCE_GRAD 2W0 2REDUCE_GRAD");
}

TEST(Generators, GpipeWithChunksGoesChunkByChunk) {
  EXPECT_EQ(work_of(make_schedule({"gpipe", 2, 2, 2}), 1), "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1");
}

TEST(Generators, InterleavedWithOneChunkIs1F1B) {
  EXPECT_EQ(make_schedule({"interleaved-1f1b", 4, 6, 1}).actions, make_schedule({"1f1b", 4, 6}).actions);
}

TEST(Generators, BubbleOfGpipeAnd1F1B) {
  for (const char* name : {"gpipe", "1f1b"})
    for (const int p : {1, 2, 3, 4, 7})
      for (const int m : {1, 2, 5, 8}) {
        const auto t = simulate(make_schedule({name, p, m}), {.forward = 1, .backward_input = 0.9, .backward_weight = 1.2});
        EXPECT_NEAR(t.bubble(), (p - 1.0) / m, 1e-9) << name << " p " << p << " m " << m;
      }
}

// (p - 1) / (v m), also where p does not divide m. With fewer micro-batches than ranks each later chunk waits for the rest.
TEST(Generators, BubbleOfInterleaved) {
  for (const int p : {2, 3, 4, 8})
    for (const int v : {1, 2, 3, 4})
      for (int m = 1; m <= 3 * p; ++m) {
        const double waits = (v - 1) * std::max(0, p - m);
        const auto t = simulate(make_schedule({"interleaved-1f1b", p, m, v}), {});
        EXPECT_NEAR(t.bubble(), (p - 1 + waits) / (v * m), 1e-9) << "p " << p << " v " << v << " m " << m;
      }
}

// Found by an independent simulation; with a warm-up of one step a rank it would be 15.
TEST(Generators, InterleavedHidesMessages) {
  const auto t = simulate(make_schedule({"interleaved-1f1b", 4, 8, 2}), {.message = 0.2});
  EXPECT_NEAR(t.step - t.busy, 11.8, 1e-9);
}

TEST(Generators, IdleShareAtFourRanksEightMicroBatches) {
  EXPECT_NEAR(idle_percent({"gpipe", 4, 8}), 27.3, 0.05);
  EXPECT_NEAR(idle_percent({"1f1b", 4, 8}), 27.3, 0.05);
  EXPECT_NEAR(idle_percent({"interleaved-1f1b", 4, 8, 2}), 15.8, 0.05);
  EXPECT_NEAR(idle_percent({"interleaved-1f1b", 4, 8, 4}), 8.6, 0.05);
  EXPECT_NEAR(idle_percent({"zbv", 4, 8}), 5.9, 0.05);
  EXPECT_NEAR(idle_percent({"zbv", 4, 8}, {.backward_weight = 0.6}), 6.7, 0.05);
}

// Rank p - 1 cannot start before the first micro-batch has come down to it: no order does better.
TEST(Generators, ZeroBubbleWaitsForNothingButTheFirstMicroBatch) {
  for (const int p : {1, 2, 3, 4, 6, 8})
    for (int m = p; m <= 3 * p; ++m) {
      const auto t = simulate(make_schedule({"zbv", p, m}), {});
      EXPECT_NEAR(t.step - t.busy, p - 1, 1e-9) << "p " << p << " m " << m;
    }
}

TEST(Generators, PeakActivations) {
  EXPECT_THAT(peak_live_activations(make_schedule({"gpipe", 4, 8})), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(peak_live_activations(make_schedule({"1f1b", 4, 8})), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(peak_live_activations(make_schedule({"interleaved-1f1b", 4, 8, 2})), ElementsAre(11, 9, 7, 5));
  for (int m = 1; m <= 24; ++m)
    for (const int p : {1, 2, 4, 7}) {
      const auto peaks = peak_live_activations(make_schedule({"zbv", p, m}));
      EXPECT_LE(*std::max_element(peaks.begin(), peaks.end()), 2 * p) << "p " << p << " m " << m;
    }
}

TEST(Generators, Refuses) {
  EXPECT_EQ(refusal({"2f2b"}), "schedule: found '2f2b', wanted gpipe, 1f1b, interleaved-1f1b, zbv");
  EXPECT_EQ(refusal({"1f1b", 0, 1}), "pipeline ranks: found 0, wanted 1 to 4096");
  EXPECT_EQ(refusal({"1f1b", 2, 0}), "micro-batches: found 0, wanted at least 1");
  EXPECT_EQ(refusal({"1f1b", 2, 1, -1}), "chunks: found -1, wanted at least 1");
  EXPECT_THAT(refusal({"zbv", 2, 4, 4}), HasSubstr("chunks: found 4, but zbv has 2 a rank"));
  EXPECT_THAT(refusal({"1f1b", 4096, 2147483647, 2147483647}), HasSubstr("wanted at most 1048576 in all"));
}

}  // namespace
}  // namespace muster::sharding::pipeline
