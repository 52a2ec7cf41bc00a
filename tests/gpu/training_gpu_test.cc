// Training on a GPU follows training on the CPU.

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "tests/training/ranks.h"
#include "worker/config/layout.h"
#include "worker/train/device.h"

namespace muster::worker {
namespace {

class Losses : public Observer {
 public:
  void on_step(const StepReport& report) override { values.push_back(report.loss); }
  void on_evaluation(const EvaluationReport& report) override { val_loss = report.val_loss; }
  std::vector<double> values;
  double val_loss = 0;
};

Losses train(RunConfig config, const std::string& device) {
  config.device = device;
  config.log_interval = 1;
  const Dataset data = testing::hashed_dataset();
  const auto rendezvous = comm::make_single_rendezvous();
  const auto communicator = comm::make_loopback_communicator();
  const at::Device where = device == "cpu" ? at::Device(at::kCPU) : open_device(config, rendezvous->place());
  Losses losses;
  Trainer(config, data, *rendezvous, *communicator, where).run(&losses);
  return losses;
}

RunConfig config_for(const std::string& precision, int64_t accumulation) {
  RunConfig c = testing::small_config(1, 12, accumulation);
  c.precision = precision;
  c.add_bias_linear = true;
  return c;
}

class TrainingOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "needs a GPU";
  }
  void expect_same(const RunConfig& config, double tolerance) {
    const Losses cpu = train(config, "cpu"), gpu = train(config, "cuda");
    ASSERT_EQ(cpu.values.size(), gpu.values.size());
    for (size_t i = 0; i < cpu.values.size(); ++i) EXPECT_NEAR(cpu.values[i], gpu.values[i], tolerance) << "step " << i + 1;
    EXPECT_NEAR(cpu.val_loss, gpu.val_loss, tolerance);
  }
};

TEST_F(TrainingOnGpu, Float64) { expect_same(config_for("fp64", 1), 1e-10); }
TEST_F(TrainingOnGpu, Float64WithDropoutIsTheSameMask) {
  RunConfig c = config_for("fp64", 2);
  c.hidden_dropout = c.attention_dropout = 0.2;  // float64 attention is composed, so its dropout is ours too
  expect_same(c, 1e-10);
}
TEST_F(TrainingOnGpu, Float32) { expect_same(config_for("fp32", 1), 1e-4); }
TEST_F(TrainingOnGpu, Llama) {
  for (const auto& [precision, tolerance] : std::vector<std::pair<const char*, double>>{{"fp64", 1e-10}, {"fp32", 1e-4}, {"bf16", 0.05}}) {
    RunConfig c = config_for(precision, 1);
    c.model = "llama";
    c.add_bias_linear = false;
    c.hidden_size = 64;
    c.num_attention_heads = 4;
    c.num_query_groups = 2;
    expect_same(c, tolerance);
  }
}
TEST_F(TrainingOnGpu, Float32Accumulated) { expect_same(config_for("fp32", 3), 1e-4); }
TEST_F(TrainingOnGpu, BFloat16) {
  expect_same(config_for("bf16", 1), 3e-2);
  expect_same(config_for("bf16", 3), 3e-2);
}

TEST_F(TrainingOnGpu, Float16) {
  expect_same(config_for("fp16", 1), 3e-2);
  expect_same(config_for("fp16", 3), 3e-2);
}

TEST_F(TrainingOnGpu, EveryStageRecomputeAndOffloadInFloat64) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* recompute : {"none", "selective", "full"}) {
      RunConfig c = config_for("fp64", 3);
      c.zero_stage = stage;
      c.recompute_granularity = recompute;
      c.offload_optimizer = stage == 2;
      c.hidden_dropout = c.attention_dropout = 0.2;
      SCOPED_TRACE(fmt::format("stage {} recompute {}", stage, recompute));
      expect_same(c, 1e-10);
    }
  }
}

// The fused kernels draw their dropout from the device's generator; the second run of a recomputed piece must draw the same.
TEST_F(TrainingOnGpu, RecomputeRepeatsTheFusedAttentionsDropout) {
  for (const char* precision : {"fp32", "bf16"}) {
    RunConfig c = config_for(precision, 1);
    c.attention_dropout = 0.3;
    const Losses wanted = train(c, "cuda");
    for (const char* recompute : {"selective", "full"}) {
      c.recompute_granularity = recompute;
      const Losses found = train(c, "cuda");
      for (size_t i = 0; i < wanted.values.size(); ++i) EXPECT_NEAR(found.values[i], wanted.values[i], precision[0] == 'f' ? 1e-4 : 3e-2) << recompute;
    }
  }
}

TEST_F(TrainingOnGpu, OffloadedOptimizerIsBitEqual) {
  RunConfig c = config_for("bf16", 2);
  const auto wanted = train(c, "cuda").values;
  c.offload_optimizer = true;
  EXPECT_EQ(train(c, "cuda").values, wanted);
}

// Bytes that the device's allocator holds between steps, beside the plan (docs/memory.md).
TEST_F(TrainingOnGpu, MeasuredMemoryIsThePlansWithin3Percent) {
  for (const char* optimizer : {"adamw", "adamw_8bit", "muon", "lion"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      RunConfig c = config_for("bf16", 3);
      c.device = "cuda";
      c.num_layers = 6, c.hidden_size = 512, c.num_attention_heads = 8, c.train_iters = 2;
      c.optimizer = optimizer;
      c.zero_stage = stage;
      const auto plan = sharding::plan_memory(memory_input(c, 1, 11));
      const Dataset data = testing::hashed_dataset();
      const auto rendezvous = comm::make_single_rendezvous();
      const auto communicator = comm::make_loopback_communicator();
      const at::Device device = open_device(c, rendezvous->place());
      const int64_t before = memory_use(device).now;
      Trainer trainer(c, data, *rendezvous, *communicator, device);
      const auto wanted = static_cast<double>(plan.persistent());
      const int64_t started = memory_use(device).now - before;
      EXPECT_GT(static_cast<double>(started), 0.97 * wanted) << optimizer << " stage " << stage;
      trainer.run(nullptr);
      const auto pools = static_cast<double>(plan.bytes("gradient buckets") + plan.bytes("incoming shards") + plan.bytes("gathered units"));
      const auto held = static_cast<double>(memory_use(device).now - before);
      std::printf("%-10s stage %d: held %.2f MiB, planned %.2f + pools %.2f\n", optimizer, stage, held / 1048576, wanted / 1048576, pools / 1048576);
      EXPECT_GT(held, 0.97 * wanted) << optimizer << " stage " << stage;
      EXPECT_LT(held, 1.03 * (wanted + pools) + (1 << 20)) << optimizer << " stage " << stage;
    }
  }
}

TEST_F(TrainingOnGpu, EveryOptimizerFollowsTheCpu) {
  for (const char* optimizer : {"adamw", "adamw_8bit", "sgd", "lion", "muon"}) {
    SCOPED_TRACE(optimizer);
    RunConfig c = config_for("fp32", 1);
    c.optimizer = optimizer;
    c.add_bias_linear = false;
    c.lr = std::string(optimizer) == "lion" ? 1e-4 : 1e-3;
    c.min_lr = c.lr / 10;
    expect_same(c, 1e-3);
  }
}

// Nothing waits for the device here, so the step must be skipped by what the kernels see.
TEST_F(TrainingOnGpu, StepsWithoutFiniteGradientsChangeNothingAndEndTheRun) {
  for (const char* optimizer : {"adamw", "adamw_8bit", "sgd", "lion", "muon"}) {
    RunConfig c = config_for("bf16", 1);
    c.device = "cuda";
    c.optimizer = optimizer;
    c.lr = c.min_lr = 1e25;  // the first step leaves weights of that size, with which nothing is finite
    c.weight_decay = 0;
    c.lr_warmup_iters = 0;
    c.lr_decay_style = "constant";
    c.log_interval = 1;
    c.max_skipped_steps = 3;
    const Dataset data = testing::hashed_dataset();
    const auto rendezvous = comm::make_single_rendezvous();
    const auto communicator = comm::make_loopback_communicator();
    Trainer trainer(c, data, *rendezvous, *communicator, open_device(c, rendezvous->place()));
    Losses losses;
    EXPECT_THROW(trainer.run(&losses), DivergedError) << optimizer;
    EXPECT_LE(losses.values.size(), 4u) << optimizer;
    trainer.parallel().visit([&](const sharding::Parameter& p) { EXPECT_TRUE(p.tensor.isfinite().all().item<bool>()) << optimizer << " " << p.name; });
  }
}

TEST_F(TrainingOnGpu, TwiceIsBitEqual) {
  RunConfig c = config_for("bf16", 2);
  c.hidden_dropout = 0.1;
  EXPECT_EQ(train(c, "cuda").values, train(c, "cuda").values);
}

}  // namespace
}  // namespace muster::worker
