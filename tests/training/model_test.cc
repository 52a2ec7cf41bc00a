// The model's gradients and the small parts around training.

#include "worker/models/model.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include "tests/training/built.h"
#include "tests/training/ranks.h"
#include "worker/models/attention.h"
#include "worker/optim/schedule.h"
#include "worker/train/generate.h"

namespace muster::worker {
namespace {

using sharding::Parameter;
using testing::Built;
using testing::small_config;

// The same model out of ATen's own differentiable operations.
at::Tensor reference_loss(Built& b, const RunConfig& c, const at::Tensor& tokens, const at::Tensor& targets) {
  const auto norm = [&](const at::Tensor& x, const std::string& n) {
    return at::layer_norm(x, {c.hidden_size}, b.parameter(n + ".weight"), c.add_bias_linear ? b.parameter(n + ".bias") : at::Tensor());
  };
  const auto linear = [&](const at::Tensor& x, const std::string& n) {
    return at::linear(x, b.parameter(n + ".weight"), c.add_bias_linear ? b.parameter(n + ".bias") : at::Tensor());
  };
  at::Tensor x = at::embedding(b.parameter("token_embedding"), tokens).add(b.parameter("position_embedding").narrow(0, 0, tokens.size(1)));
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string n = "block" + std::to_string(i);
    const auto qkv = linear(norm(x, n + ".norm1"), n + ".attention.qkv").chunk(3, 2);
    const auto heads = [&](const at::Tensor& t) { return t.view({t.size(0), t.size(1), c.num_attention_heads, -1}).transpose(1, 2); };
    const at::Tensor a = at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, 0.0, true);
    x = x.add(linear(a.transpose(1, 2).reshape(x.sizes()), n + ".attention.out"));
    x = x.add(linear(at::gelu(linear(norm(x, n + ".norm2"), n + ".mlp.up")), n + ".mlp.down"));
  }
  const at::Tensor head = b.parameter(c.untie_embeddings_and_output_weights ? "head" : "token_embedding");
  return at::cross_entropy_loss(at::linear(norm(x, "final_norm"), head).view({-1, 11}), targets.view({-1}), {}, at::Reduction::Sum, -1);
}

class Gradients : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(Gradients, EqualAutogradOfTheSameModelInATen) {
  RunConfig c = small_config(1);
  c.add_bias_linear = std::get<0>(GetParam());
  c.untie_embeddings_and_output_weights = std::get<1>(GetParam());
  Built ours(c), reference(c);
  const at::Tensor tokens = at::randint(11, {3, 8}, at::kLong);
  at::Tensor targets = at::randint(11, {3, 8}, at::kLong);
  targets[1][2].fill_(-1);
  targets[0][0].fill_(-1);
  for (int micro = 0; micro < 2; ++micro) {  // twice: gradients accumulate
    const at::Tensor loss = ours.model->loss(tokens, targets, {true, 0, 0});
    const at::Tensor wanted = reference_loss(reference, c, tokens, targets);
    EXPECT_NEAR(loss.item<double>(), wanted.item<double>(), 1e-10);
    loss.backward();
    wanted.backward();
  }
  for (size_t i = 0; i < ours.flat.parameters().size(); ++i) {
    const Parameter& p = *ours.flat.parameters()[i];
    const at::Tensor wanted = reference.flat.parameters()[i]->tensor.grad();
    EXPECT_LT(p.grad.sub(wanted).abs().max().item<double>(), 1e-10) << p.name;
    EXPECT_GT(wanted.abs().max().item<double>(), 0) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Model, Gradients, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST(Attention, DropoutMatchesFiniteDifferences) {
  const kernels::DropoutKey key{123, 5, 0.3};
  at::Tensor qkv = at::randn({2 * 4, 3 * 6}, at::kDouble).set_requires_grad(true);
  const at::Tensor weights = at::randn({8, 6}, at::kDouble);
  const auto f = [&](const at::Tensor& x) { return ops::causal_attention(x, 2, 2, key).mul(weights).sum(); };
  f(qkv).backward();
  const at::Tensor grad = qkv.grad();
  double* values = qkv.data_ptr<double>();
  for (int64_t i = 0; i < qkv.numel(); ++i) {
    const double kept = values[i], h = 1e-5;
    values[i] = kept + h;
    const double up = f(qkv.detach()).item<double>();
    values[i] = kept - h;
    const double down = f(qkv.detach()).item<double>();
    values[i] = kept;
    EXPECT_NEAR(grad.view({-1})[i].item<double>(), (up - down) / (2 * h), 1e-7);
  }
}

TEST(Initialize, AValueDependsOnSeedNameAndElementAlone) {
  RunConfig c = small_config(1), deeper = small_config(1);
  deeper.num_layers = 3;
  deeper.untie_embeddings_and_output_weights = true;
  Built a(c), b(deeper);
  EXPECT_TRUE(a.parameter("block1.attention.qkv.weight").equal(b.parameter("block1.attention.qkv.weight")));
  EXPECT_FALSE(a.parameter("block0.attention.qkv.weight").equal(a.parameter("block1.attention.qkv.weight")));
  const at::Tensor w = a.parameter("block0.mlp.up.weight");
  EXPECT_NEAR(w.std().item<double>(), 0.02, 0.002);
  EXPECT_NEAR(w.mean().item<double>(), 0.0, 0.002);
}

TEST(Schedule, WarmsUpDecaysAndStays) {
  RunConfig c;
  c.lr = 1.0;
  c.min_lr = 0.1;
  c.lr_warmup_iters = 9;
  c.lr_decay_iters = 109;
  EXPECT_DOUBLE_EQ(learning_rate(c, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 8), 0.9);
  EXPECT_DOUBLE_EQ(learning_rate(c, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 59), 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(c, 5000), 0.1);
  c.lr_decay_style = "linear";
  EXPECT_NEAR(learning_rate(c, 34), 0.775, 1e-12);
  c.lr_decay_style = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(c, 5000), 1.0);
}

TEST(Generate, IsAFunctionOfTheSeedAndStaysInTheVocabulary) {
  const RunConfig c = small_config(1);
  Built b(c);
  const auto run = [&](uint64_t seed) { return generate([&](const at::Tensor& tokens) { return b.model->next_token_logits(tokens); }, {3}, 40, c.seq_length, at::Device(at::kCPU), seed); };
  const auto tokens = run(1);
  EXPECT_EQ(tokens.size(), 40u);
  EXPECT_EQ(tokens, run(1));
  EXPECT_NE(tokens, run(2));
  for (const int64_t t : tokens) EXPECT_TRUE(t >= 0 && t < 11);
}

}  // namespace
}  // namespace muster::worker
