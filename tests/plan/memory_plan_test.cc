#include "sharding/plan/memory_plan.h"

#include <gtest/gtest.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

MemoryInput small() {
  MemoryInput in;
  in.model = {2, 2, 16, 8, 11, false, true};
  in.buckets.bucket_bytes = in.buckets.first_bucket_bytes = 1 << 30;
  return in;
}

// 16-element steps: 11 x 16 and 8 x 16 embeddings, per block 16 + 768 + 256 + 16 + 1024 + 1024, 16 at the end.
constexpr int64_t kElements = 176 + 128 + 2 * (16 + 768 + 256 + 16 + 1024 + 1024) + 16;

TEST(MemoryPlan, CountsASmallModelByHand) {
  MemoryInput in = small();
  const MemoryPlan plan = plan_memory(in);
  EXPECT_EQ(plan.bytes("parameters"), kElements * 4);
  EXPECT_EQ(plan.bytes("gradients"), kElements * 4);
  EXPECT_EQ(plan.bytes("optimizer"), kElements * 8);
  EXPECT_EQ(plan.bytes("gradient buckets"), 0);
  EXPECT_EQ(plan.bytes("logits"), 8 * 11 * 4);
  EXPECT_EQ(plan.bytes("activations"), 8 * 16 * (16 * 2 + 2) * 4);
  in.param_bytes = 2;
  in.master_bytes = 4;
  EXPECT_EQ(plan_memory(in).bytes("optimizer"), kElements * 12);
}

TEST(MemoryPlan, StagesShardWhatTheTableSays) {
  MemoryInput in = small();
  in.shards = 4;
  for (const auto& [stage, parameters, gradients, optimizer] : std::vector<std::tuple<int, int, int, int>>{{1, 1, 1, 4}, {2, 1, 4, 4}, {3, 4, 4, 4}}) {
    in.zero_stage = stage;
    const MemoryPlan plan = plan_memory(in);
    const double padded = static_cast<double>(kElements);
    EXPECT_NEAR(static_cast<double>(plan.bytes("parameters")), padded * 4 / parameters, 64 * 16 * 4) << stage;
    EXPECT_NEAR(static_cast<double>(plan.bytes("gradients")), padded * 4 / gradients, 64 * 16 * 4) << stage;
    EXPECT_NEAR(static_cast<double>(plan.bytes("optimizer")), padded * 8 / optimizer, 64 * 16 * 8) << stage;
    EXPECT_EQ(plan.bytes("gathered units") > 0, stage == 3);
    EXPECT_EQ(plan.bytes("gradient buckets") > 0, stage >= 2);
  }
}

TEST(MemoryPlan, PersistentMemoryFallsWithTheStageAndTheOptimizer) {
  MemoryInput in = small();
  in.param_bytes = 2, in.master_bytes = 4;
  int64_t before = plan_memory(in).persistent();
  in.shards = 4;
  for (int stage = 1; stage <= 3; ++stage) {
    in.zero_stage = stage;
    const int64_t now = plan_memory(in).persistent();
    EXPECT_LT(now, before) << stage;
    before = now;
  }
  for (const char* optimizer : {"muon", "sgd", "adamw_8bit"}) {
    in.optimizer = optimizer;
    const int64_t now = plan_memory(in).persistent();
    EXPECT_LT(now, before) << optimizer;
    before = now;
  }
  in.offload_optimizer = true;
  EXPECT_EQ(plan_memory(in).bytes("optimizer"), 0);
}

TEST(MemoryPlan, RecomputingKeepsLess) {
  MemoryInput in = small();
  in.model.num_layers = 40;
  int64_t before = plan_memory(in).bytes("activations");
  for (const char* recompute : {"selective", "full"}) {
    in.recompute = recompute;
    EXPECT_LT(plan_memory(in).bytes("activations"), before) << recompute;
    before = plan_memory(in).bytes("activations");
  }
}

TEST(MemoryPlan, EnormousModelsAreRefusedNotOverflowed) {
  MemoryInput in = small();
  in.model = {10000, 16, 1 << 20, 1 << 24, 1 << 30, true, false};
  EXPECT_THROW(plan_memory(in), InputError);
  in.model = {10000, 16, 1 << 16, 1 << 14, 1 << 20, true, false};
  in.micro_batch_size = 1 << 6;
  EXPECT_GT(plan_memory(in).total(), 0);
}

}  // namespace
}  // namespace muster::sharding
