// Every optimizer, sharded and whole, trains the same model; and each is what its paper says.

#include <map>
#include <mutex>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/training/trained.h"

namespace muster::worker {
namespace {

using namespace testing;

class EveryOptimizer : public ::testing::TestWithParam<const char*> {};

RunConfig config_of(const std::string& optimizer, int ranks, int stage) {
  RunConfig c = small_config(ranks, 12, 1);
  c.optimizer = optimizer;
  c.zero_stage = stage;
  c.lr = optimizer == "sgd" ? 0.1 : optimizer == "lion" ? 1e-4 : 3e-3;
  c.min_lr = c.lr / 10;
  // The keys' bias has no gradient but rounding; Lion takes the sign of it, AdamW in float32 its direction.
  c.add_bias_linear = optimizer != "lion" && optimizer != "adamw_8bit";
  c.first_bucket_size_mb = 0.001;
  c.reduce_bucket_size_mb = 0.004;
  c.log_interval = 1;
  if (optimizer == "adamw_8bit") c.precision = "fp32";
  return c;
}

TEST_P(EveryOptimizer, EveryStageEqualsOneProcess) {
  const std::string name = GetParam();
  const Trained one = train(1, config_of(name, 1, 0));
  // 8-bit states have blocks that depend on the layout, so layouts agree to their precision only.
  const double tolerance = name == "adamw_8bit" ? 2e-2 : 1e-10;
  for (const int ranks : {1, 2, 3, 4}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const Trained many = train(ranks, config_of(name, ranks, stage));
      EXPECT_LT(largest_difference(one, many), tolerance) << ranks << " ranks, stage " << stage;
      EXPECT_TRUE(many.ranks_agree) << ranks << " ranks, stage " << stage;
      EXPECT_NEAR(one.losses.back(), many.losses.back(), tolerance) << ranks << " ranks, stage " << stage;
    }
  }
}

TEST_P(EveryOptimizer, MovesEveryParameterAndLowersTheLoss) {
  RunConfig c = config_of(GetParam(), 1, 0);
  c.train_iters = c.lr_decay_iters = 60;
  c.clip_grad = 0;
  const Trained trained = train(1, c);
  c.train_iters = 1;
  const Trained start = train(1, c);
  for (const auto& [name, value] : trained.parameters) EXPECT_FALSE(at::equal(value, start.parameters.at(name))) << name;
  EXPECT_LT(trained.losses.back(), trained.losses.front());
}

TEST_P(EveryOptimizer, StateIsSharded) {
  const Dataset data = hashed_dataset();
  std::map<int, int64_t> bytes;
  for (const int stage : {0, 1}) {
    run_ranks(4, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      RunConfig c = config_of(GetParam(), 4, stage);
      c.precision = "bf16";
      Trainer trainer(c, data, rendezvous, communicator, at::Device(at::kCPU));
      const int64_t mine = trainer.optimizer().state_bytes();
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      bytes[stage] = stage == 0 ? mine : bytes[stage] + mine;
    });
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 1.0, 0.1);  // padding, blocks cut in two
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, ::testing::Values("adamw", "adamw_8bit", "sgd", "lion", "muon"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::worker
