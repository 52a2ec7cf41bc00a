// The Llama block: gradients, grouped-query attention, recomputation, layouts.

#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "tests/training/built.h"
#include "tests/training/trained.h"
#include "worker/models/attention.h"

namespace muster::worker {
namespace {

using namespace testing;
using sharding::Parameter;

RunConfig llama_config(int ranks = 1, int64_t global_batch = 12, int64_t accumulation = 1) {
  RunConfig c = small_config(ranks, global_batch, accumulation);
  c.model = "llama";
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.ffn_hidden_size = 24;
  c.rotary_base = 100;
  c.norm_epsilon = 1e-3;
  c.untie_embeddings_and_output_weights = true;
  return c;
}

// x (B, H, T, D), by the paper: as complex numbers.
at::Tensor turned(const at::Tensor& x, const RunConfig& c) {
  const int64_t width = x.size(3), length = x.size(2);
  const at::Tensor powers = at::arange(0, width, 2, at::kDouble).div(-static_cast<double>(width));
  const at::Tensor angles = at::outer(at::arange(length, at::kDouble), at::pow(c.rotary_base, powers));
  const auto pairs = c.rotary_interleaved ? x.unflatten(3, {width / 2, 2}).unbind(4) : x.unflatten(3, {2, width / 2}).unbind(3);
  const at::Tensor a = pairs[0].mul(angles.cos()).sub(pairs[1].mul(angles.sin())),
                   b = pairs[0].mul(angles.sin()).add(pairs[1].mul(angles.cos()));
  return at::stack({a, b}, c.rotary_interleaved ? 4 : 3).flatten(3);
}

at::Tensor reference_attention(const at::Tensor& qkv, const RunConfig& c) {
  const int64_t heads = c.num_attention_heads, groups = query_groups(c), width = c.hidden_size / heads;
  const auto parts = qkv.split_with_sizes({heads * width, groups * width, groups * width}, 2);
  const auto by_head = [&](const at::Tensor& t) { return t.unflatten(2, {t.size(2) / width, width}).transpose(1, 2); };
  const at::Tensor q = turned(by_head(parts[0]), c), k = turned(by_head(parts[1]), c).repeat_interleave(heads / groups, 1);
  const at::Tensor v = by_head(parts[2]).repeat_interleave(heads / groups, 1);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).transpose(1, 2).flatten(2);
}

// The same model out of ATen's own differentiable operations.
at::Tensor reference_loss(Built& b, const RunConfig& c, const at::Tensor& tokens, const at::Tensor& targets) {
  const auto norm = [&](const at::Tensor& x, const std::string& n) {
    return at::rms_norm(x, {c.hidden_size}, b.parameter(n + ".weight"), c.norm_epsilon);
  };
  const auto linear = [&](const at::Tensor& x, const std::string& n) { return at::linear(x, b.parameter(n + ".weight")); };
  at::Tensor x = at::embedding(b.parameter("token_embedding"), tokens);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const std::string n = "block" + std::to_string(i);
    x = x.add(linear(reference_attention(linear(norm(x, n + ".norm1"), n + ".attention.qkv"), c), n + ".attention.out"));
    const auto gate_up = linear(norm(x, n + ".norm2"), n + ".mlp.gate_up").chunk(2, 2);
    x = x.add(linear(at::silu(gate_up[0]).mul(gate_up[1]), n + ".mlp.down"));
  }
  const at::Tensor head = b.parameter(c.untie_embeddings_and_output_weights ? "head" : "token_embedding");
  return at::cross_entropy_loss(at::linear(norm(x, "final_norm"), head).view({-1, 11}), targets.view({-1}), {},
                                at::Reduction::Sum, -1);
}

class LlamaGradients : public ::testing::TestWithParam<std::tuple<int64_t, bool, bool>> {};

TEST_P(LlamaGradients, EqualAutogradOfTheSameModelInATen) {
  RunConfig c = llama_config();
  std::tie(c.num_query_groups, c.rotary_interleaved, c.untie_embeddings_and_output_weights) = GetParam();
  Built ours(c), reference(c);
  const at::Tensor tokens = at::randint(11, {3, 7}, at::kLong);  // shorter than the context
  at::Tensor targets = at::randint(11, {3, 7}, at::kLong);
  targets[1][2].fill_(-1);
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

INSTANTIATE_TEST_SUITE_P(Model, LlamaGradients,
                         ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Bool(), ::testing::Bool()));

struct AttentionCase {
  at::ScalarType dtype;
  double p, tolerance;
  int64_t length;  // beyond 512 float32 leaves the kernel for short sequences
};
class GroupedAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(GroupedAttention, EqualsRepeatedHeads) {
  const auto [dtype, p, tolerance, length] = GetParam();
  const int64_t batch = 2, heads = 6, width = 8;
  const kernels::DropoutKey key{99, 3, p};
  for (const int64_t groups : {1, 2, 3}) {
    at::Tensor shared = at::randn({batch * length, (heads + 2 * groups) * width}, dtype).set_requires_grad(true);
    const auto parts = shared.unflatten(1, {heads + 2 * groups, width}).split_with_sizes({heads, groups, groups}, 1);
    const auto repeated = [&](const at::Tensor& t) { return t.repeat_interleave(heads / groups, 1); };
    const at::Tensor whole = at::cat({parts[0], repeated(parts[1]), repeated(parts[2])}, 1).flatten(1);
    const at::Tensor g = at::randn({batch * length, heads * width}, dtype);
    const at::Tensor wanted = ops::causal_attention(whole, batch, heads, key);
    wanted.backward(g);
    const at::Tensor wanted_grad = shared.grad().clone();
    shared.mutable_grad().reset();
    const at::Tensor out = ops::causal_attention(shared, batch, {heads, groups}, key);
    out.backward(g);
    EXPECT_LT(out.sub(wanted).abs().max().item<double>(), tolerance) << groups;
    EXPECT_LT(shared.grad().sub(wanted_grad).abs().max().item<double>(), 20 * tolerance) << groups;
    EXPECT_GT(wanted_grad.abs().max().item<double>(), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GroupedAttention,
                         ::testing::Values(AttentionCase{at::kDouble, 0, 1e-12, 9}, AttentionCase{at::kDouble, 0.3, 1e-12, 9},
                                           AttentionCase{at::kFloat, 0, 2e-6, 33}, AttentionCase{at::kFloat, 0, 2e-6, 520},
                                           AttentionCase{at::kFloat, 0.3, 2e-6, 33}, AttentionCase{at::kBFloat16, 0, 0.04, 33}));

TEST(Llama, RecomputationChangesNoBit) {
  const at::Tensor tokens = at::randint(11, {3, 8}, at::kLong), targets = at::randint(11, {3, 8}, at::kLong);
  const auto run = [&](const std::string& granularity) {
    RunConfig c = llama_config();
    c.recompute_granularity = granularity;
    c.hidden_dropout = c.attention_dropout = 0.1;
    Built b(c);
    const at::Tensor loss = b.model->loss(tokens, targets, {true, 4, 17});
    loss.backward();
    std::vector<at::Tensor> out = {loss.detach()};
    for (const Parameter* p : b.flat.parameters()) out.push_back(p->grad.clone());
    return out;
  };
  const auto none = run("none");
  for (const char* granularity : {"selective", "full"}) {
    const auto again = run(granularity);
    for (size_t i = 0; i < none.size(); ++i) EXPECT_TRUE(none[i].equal(again[i])) << granularity << " " << i;
  }
}

TEST(Llama, GptSharesItsQueryGroupsAndWidths) {
  RunConfig c = small_config(1);
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.ffn_hidden_size = 40;
  Built b(c);
  EXPECT_EQ(b.parameter("block0.attention.qkv.weight").sizes(), at::IntArrayRef({16 + 2 * 2 * 4, 16}));
  EXPECT_EQ(b.parameter("block0.mlp.up.weight").sizes(), at::IntArrayRef({40, 16}));
  EXPECT_TRUE(
      std::isfinite(b.model->loss(at::randint(11, {3, 8}, at::kLong), at::randint(11, {3, 8}, at::kLong), {}).item<double>()));
}

TEST(Llama, TheNextTokenIsOfTheSameModelAsTheLoss) {
  Built b(llama_config());
  const at::Tensor tokens = at::randint(11, {1, 8}, at::kLong), logits = b.model->next_token_logits(tokens);
  at::Tensor targets = at::randint(11, {1, 8}, at::kLong).fill_(-1);
  for (const int64_t token : {0, 10}) {
    targets[0][7].fill_(token);
    const double loss = logits.logsumexp(1).item<double>() - logits[0][token].item<double>();
    EXPECT_NEAR(b.model->loss(tokens, targets, {}).item<double>(), loss, 1e-12);
  }
}

// A part of the layout matrix: what a layout may change does not depend on the model.
TEST(Llama, LayoutsEqualOneProcess) {
  for (const bool tied : {false, true}) {
    const auto with = [&](RunConfig c, int64_t stage, const std::string& recompute) {
      c.untie_embeddings_and_output_weights = !tied;
      c.zero_stage = stage;
      c.recompute_granularity = recompute;
      c.clip_grad = 0.1;
      c.hidden_dropout = c.attention_dropout = 0.1;
      c.first_bucket_size_mb = 0.001;
      c.reduce_bucket_size_mb = 0.004;
      c.log_interval = 1;
      return c;
    };
    const Trained one = train(1, with(llama_config(1), 0, "none"));
    EXPECT_NE(one.losses.back(), one.losses.front());
    for (const int64_t stage : {0, 1, 2, 3}) {
      const Trained two = train(2, with(llama_config(2, 12, stage % 2 ? 3 : 1), stage,
                                        stage == 3   ? "full"
                                        : stage == 2 ? "selective"
                                                     : "none"));
      EXPECT_LT(largest_difference(one, two), 1e-10) << stage;
      EXPECT_TRUE(two.ranks_agree) << stage;
      EXPECT_NEAR(one.val_loss, two.val_loss, 1e-10) << stage;
      ASSERT_EQ(one.losses.size(), two.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one.losses[i], two.losses[i], 1e-10) << stage << " step " << i;
    }
  }
}

}  // namespace
}  // namespace muster::worker
