// Every optimizer, sharded and whole, trains the same model; and each is what its paper says.

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tests/training/trained.h"
#include "worker/optim/eight_bit.h"
#include "worker/optim/muon.h"

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

TEST(EightBit, RoundTripIsNearAndRepeatable) {
  for (const bool is_signed : {true, false}) {
    const EightBit coder(is_signed, at::TensorOptions());
    EXPECT_EQ(coder.map.numel(), 256);
    EXPECT_TRUE(coder.map.narrow(0, 1, 255).gt(coder.map.narrow(0, 0, 255)).all().item<bool>());
    for (const int64_t n : {0, 1, 16, 255, 256, 257, 1000}) {
      at::Tensor values = at::randn({n}).mul_(at::randn({n}).mul_(4).exp_());
      if (!is_signed) values.abs_();
      at::Tensor codes = at::zeros({n}, at::kByte), scales = at::zeros({(n + 255) / 256});
      coder.encode(values, codes, scales);
      const at::Tensor back = coder.decode(codes, scales);
      at::Tensor again = at::zeros({n}, at::kByte), scales_again = at::zeros_like(scales);
      coder.encode(back, again, scales_again);
      EXPECT_TRUE(at::equal(codes, again) && at::equal(scales, scales_again)) << n;
      if (n == 0) continue;
      // Within a decade of the block's largest, values are known to a 32nd of it.
      const at::Tensor limit = scales.repeat_interleave(256).narrow(0, 0, n);
      EXPECT_TRUE(back.sub(values).abs().le(limit.mul(1.0 / 32)).all().item<bool>());
      EXPECT_TRUE(is_signed || back.gt(0).eq(values.gt(0)).all().item<bool>());
    }
  }
}

TEST(Orthogonalize, SingularValuesComeNearOne) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{8, 8}, {5, 20}, {20, 5}, {1, 9}}) {
    const at::Tensor q = orthogonalize(at::randn(shape, at::kDouble));
    EXPECT_EQ(q.sizes(), at::IntArrayRef(shape));
    const at::Tensor gram = shape[0] <= shape[1] ? at::mm(q, q.t()) : at::mm(q.t(), q);
    // The iteration leaves singular values between about 0.7 and 1.2; the traces tell their mean square.
    const double mean_square = gram.trace().item<double>() / static_cast<double>(std::min(shape[0], shape[1]));
    EXPECT_NEAR(mean_square, 1.0, 0.6);
    EXPECT_LT(gram.sub(gram.diag().diag()).abs().max().item<double>(), 0.4);
  }
  EXPECT_EQ(orthogonalize(at::zeros({3, 4}, at::kDouble)).abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace muster::worker
