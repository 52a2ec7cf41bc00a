// What kernels.h promises beyond agreement with ATen: the mask's formula, extreme values, empty tensors, equal bits for any number
// of threads, refusals.

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "worker/kernels/attention.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"
#include "worker/kernels/philox.h"

namespace muster::worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DropoutMask, FollowsItsFormula) {
  for (const int64_t width : {1, 3, 4, 63, 64, 65, 130, 1001}) {
    const kernels::DropoutKey key{0xfeedfacecafebeef, (int64_t{1} << 33) + 5, 0.3};
    const at::Tensor y = kernels::dropout(at::ones({3, width}), key);
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t e = 0; e < width; ++e) {
        const bool kept = philox(key.key, static_cast<uint64_t>(key.first_sample + s), static_cast<uint64_t>(e / 4)).v[e % 4] >= dropout_threshold(key.p);
        ASSERT_EQ(y[s][e].item<float>(), kept ? static_cast<float>(1 / 0.7) : 0.0f) << s << " " << e << " of " << width;
      }
    }
  }
}

TEST(DropoutMask, ARowIsAllDimensionsAfterTheFirst) {
  const at::Tensor x = at::randn({4, 3, 5, 7});
  const kernels::DropoutKey key{9, 2, 0.5};
  EXPECT_TRUE(kernels::dropout(x, key).view({4, 105}).equal(kernels::dropout(x.view({4, 105}), key)));
}

TEST(ExtremeValues, Gelu) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::tensor({-100.0, -5.5, 0.0, 5.5, 100.0, std::nan("")}, dtype);
    const at::Tensor y = kernels::gelu(x), dy = kernels::gelu_backward(at::ones({6}, dtype), x);
    const std::vector<double> wanted = {0, 0, 0, 5.5, 100};
    const std::vector<double> slope = {0, 0, 0.5, 1, 1};
    for (int i = 0; i < 5; ++i) {
      EXPECT_NEAR(y[i].item<double>(), wanted[i], 1e-6) << i;
      EXPECT_NEAR(dy[i].item<double>(), slope[i], 1e-6) << i;
    }
    EXPECT_TRUE(std::isnan(y[5].item<double>()) && std::isnan(dy[5].item<double>()));
  }
}

TEST(ExtremeValues, CrossEntropy) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    at::Tensor logits = at::full({3, 20}, -kInfinity, dtype);
    logits[0].narrow(0, 5, 2).fill_(1e4);  // two equal candidates: log 2
    logits[1].fill_(-1e30);                // all equal: log 20
    logits[2].fill_(std::nan(""));         // does not count, and leaves nothing behind
    const at::Tensor targets = at::tensor({5, 0, -1}, at::kLong);
    const double wanted = std::log(2.0) + std::log(20.0);
    EXPECT_NEAR(kernels::cross_entropy(logits, targets).item<double>(), wanted, 1e-6);
    EXPECT_NEAR(kernels::cross_entropy_in_place(logits, targets).item<double>(), wanted, 1e-6);
    EXPECT_NEAR(logits[0][5].item<double>(), -0.5, 1e-6);
    EXPECT_EQ(logits[0][4].item<double>(), 0);
    EXPECT_EQ(logits[2].abs().sum().item<double>(), 0);
  }
}

TEST(ExtremeValues, NanReachesTheLossAndTheNorm) {
  at::Tensor x = at::randn({40, 70});
  x[39][69].fill_(std::nan(""));
  EXPECT_TRUE(std::isnan(kernels::sum_of_squares(x).item<double>()));
  EXPECT_TRUE(std::isnan(kernels::cross_entropy(x, at::zeros({40}, at::kLong)).item<double>()));
  EXPECT_EQ(kernels::sum_of_squares(at::full({3}, 1e25)).item<double>(), 3 * std::pow(static_cast<double>(1e25f), 2));
}

TEST(EmptyTensors, AreAllowed) {
  const at::Tensor none = at::empty({0, 8}), w = at::ones({8}), v = at::empty({0}), gw = at::full({8}, 3.0);
  EXPECT_EQ(kernels::dropout(none, {1, 0, 0.5}).sizes(), none.sizes());
  EXPECT_EQ(kernels::gelu_backward(none, kernels::gelu(none)).sizes(), none.sizes());
  const auto out = kernels::residual_layer_norm(none, none, w, {});
  EXPECT_EQ(kernels::residual_layer_norm_backward(none, {}, out.sum, out.mean, out.rstd, w, gw, {}).sizes(), none.sizes());
  EXPECT_TRUE(gw.equal(at::full({8}, 3.0)));
  kernels::adamw(v, v, v, v, {}, 0, at::ones({1}), {1e-3, 0.9, 0.9, 1e-8, 0, 1});
  EXPECT_EQ(kernels::matmul_nn(at::empty({0, 3}), at::ones({3, 2})).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(kernels::matmul_nn(at::empty({2, 0}), at::empty({0, 3})).equal(at::zeros({2, 3})));
  at::Tensor kept = at::full({2, 3}, 5.0);
  kernels::matmul_tn_out(kept, at::empty({0, 2}), at::empty({0, 3}), true);
  EXPECT_TRUE(kept.equal(at::full({2, 3}, 5.0)));
}

TEST(WeightGradients, MayBeOfAWiderType) {
  const at::Tensor x = at::randn({100, 24}), g = at::randn({100, 24}), w = at::randn({24});
  const auto out = kernels::residual_layer_norm(x, {}, w, {});
  at::Tensor narrow_w = at::ones({24}), wide_w = at::ones({24}, at::kDouble), wide_b = at::zeros({24}, at::kDouble);
  kernels::residual_layer_norm_backward(g, {}, out.sum, out.mean, out.rstd, w, narrow_w, {});
  kernels::residual_layer_norm_backward(g, {}, out.sum, out.mean, out.rstd, w, wide_w, wide_b);
  EXPECT_TRUE(wide_w.allclose(narrow_w.to(at::kDouble), 1e-6, 1e-6));
  EXPECT_TRUE(wide_b.allclose(g.to(at::kDouble).sum(0), 1e-5, 1e-5));
}

// Large enough that two threads share each call.
std::vector<at::Tensor> everything(const at::Tensor& x, const at::Tensor& w) {
  const auto n = kernels::residual_layer_norm(x, x, w, {});
  at::Tensor gw = at::zeros_like(w), gb = at::zeros_like(w), logits = x.clone(), m = at::zeros_like(x), v = at::zeros_like(x), p = x.clone();
  const at::Tensor targets = at::zeros({x.size(0)}, at::kLong), d = kernels::residual_layer_norm_backward(x, x, n.sum, n.mean, n.rstd, w, gw, gb);
  const at::Tensor loss = kernels::cross_entropy_in_place(logits, targets);
  kernels::adamw(p, x, m, v, {}, x.numel() / 3, at::ones({1}, x.options()), {1e-3, 0.9, 0.9, 1e-8, 0.1, 1});
  return {n.sum, n.normed, n.mean, n.rstd, d, gw, gb, logits, loss, kernels::cross_entropy(x, targets), p, m, v,
          kernels::gelu(x), kernels::gelu_backward(x, x), kernels::dropout(x, {1, 0, 0.2}), kernels::sum_of_squares(x)};
}

TEST(Threads, NoBitDependsOnTheirNumber) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::randn({3001, 96}, dtype), w = at::randn({96}, dtype);
    at::set_num_threads(1);
    const auto one = everything(x, w);
    at::set_num_threads(2);
    const auto two = everything(x, w);
    at::set_num_threads(1);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(two[i])) << i;
  }
}

TEST(Threads, NorOfTheAttention) {
  const at::Tensor qkv = at::randn({4 * 33, 3 * 64}), grad = at::randn({4 * 33, 64});
  if (!kernels::short_attention_fits(qkv, 33)) GTEST_SKIP() << "this processor uses ATen's attention";
  const auto both = [&](int threads) {
    at::set_num_threads(threads);
    const auto out = kernels::short_attention(qkv, 4, 4);
    return std::pair(out.out, kernels::short_attention_backward(grad, qkv, out, 4, 4));
  };
  const auto one = both(1), two = both(2);
  at::set_num_threads(1);
  EXPECT_TRUE(one.first.equal(two.first) && one.second.equal(two.second));
}

TEST(MatmulStrides, EachProductTakesRowsOfAWiderMatrix) {
  const at::Tensor wide = at::randn({40, 96}), part = wide.narrow(1, 32, 32), copy = part.contiguous(), b = at::randn({32, 40}), c = at::randn({40, 17});
  EXPECT_TRUE(kernels::matmul_nn(part, b).equal(kernels::matmul_nn(copy, b)));
  EXPECT_TRUE(kernels::matmul_nt(b.t(), b.t()).allclose(kernels::matmul_nt(b.t().contiguous(), b.t().contiguous()), 1e-5, 1e-5));
  at::Tensor from_part = at::empty({32, 17}), from_copy = at::empty({32, 17});
  kernels::matmul_tn_out(from_part, part, c, false);
  kernels::matmul_tn_out(from_copy, copy, c, false);
  EXPECT_TRUE(from_part.equal(from_copy));
}

TEST(Refusals, LayerNorm) {
  const at::Tensor x = at::randn({4, 6}), half = x.to(at::kBFloat16), w = at::ones({6}), m = at::ones({4}), none;
  EXPECT_THROW(kernels::residual_layer_norm(half, {}, w, {}), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm(x, {}, w, w.to(at::kDouble)), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm(x, {}, {}, {}), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm_backward(x, {}, x, m.to(at::kDouble), m, w, none, none), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm_backward(x, {}, x, m, at::ones({5}), w, none, none), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm_backward(x, {}, x, m, m, w, at::ones({5}), none), CheckError);
  EXPECT_NO_THROW(kernels::residual_layer_norm_backward(x, {}, x, m, m, w, none, none));
}

TEST(Refusals, TheRest) {
  const at::Tensor x = at::randn({4, 6}), w = at::ones({6}), scale = at::ones({1}), none;
  const kernels::AdamWStep step{1e-3, 0.9, 0.9, 1e-8, 0, 1};
  EXPECT_THROW(kernels::adamw(w, w, w.to(at::kDouble), w, none, 0, scale, step), CheckError);
  EXPECT_THROW(kernels::adamw(w, w, w, w, none, 0, scale.to(at::kDouble), step), CheckError);
  EXPECT_THROW(kernels::adamw(w.to(at::kHalf), w, w, w, none, 0, scale, step), CheckError);
  EXPECT_THROW(kernels::adamw(w, w, w, w, none, 0, scale, {1e-3, 0.9, 0.9, 1e-8, 0, 0}), CheckError);
  EXPECT_THROW(kernels::cross_entropy(x, at::zeros({4}, at::kInt)), CheckError);
  EXPECT_THROW(kernels::dropout(x, {1, 0, -0.1}), CheckError);
  EXPECT_THROW(kernels::gelu(at::empty({3}, at::kMeta)), CheckError);  // a device without kernels
}

TEST(Refusals, Attention) {
  const at::Tensor qkv = at::randn({8, 36});
  if (!kernels::short_attention_fits(qkv, 8)) GTEST_SKIP() << "this processor uses ATen's attention";
  EXPECT_THROW(kernels::short_attention(qkv, 3, 2), CheckError);                  // rows
  EXPECT_THROW(kernels::short_attention(qkv, 2, 5), CheckError);                  // heads
  EXPECT_THROW(kernels::short_attention(at::randn({8, 35}), 2, 1), CheckError);   // columns
  EXPECT_THROW(kernels::short_attention(qkv.t(), 2, 2), CheckError);              // strides
  const auto out = kernels::short_attention(qkv, 2, 2);
  EXPECT_THROW(kernels::short_attention_backward(at::randn({7, 12}), qkv, out, 2, 2), CheckError);
}

}  // namespace
}  // namespace muster::worker
