// The CPU kernels against ATen's operations and against formulas.

#include "worker/kernels/kernels.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "tests/kernels/dtype_cases.h"
#include "worker/kernels/philox.h"

namespace muster::worker {
namespace {

using namespace testing;

class Kernels : public ByDtype {};

TEST_P(Kernels, GeluIsTheExactOne) {
  for (const int64_t n : {1, 15, 16, 17, 1000, 100003}) {
    const at::Tensor x = at::linspace(n > 1 ? -8 : 1, 8, n, at::kDouble).to(GetParam().dtype), g = random({n});
    const at::Tensor exact = x.to(at::kDouble);
    expect_close(kernels::gelu(x), at::gelu(exact), "gelu");
    expect_close(kernels::gelu_backward(g, x), at::gelu_backward(g.to(at::kDouble), exact), "gelu_backward");
  }
}

TEST_P(Kernels, ResidualLayerNorm) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {65, 16}, {384, 128}, {130, 100}}) {
    for (const bool full : {false, true}) {
      const at::Tensor r = random({rows, width}), x = full ? random({rows, width}) : at::Tensor(), w = random({width}), b = full ? random({width}) : at::Tensor();
      const auto out = kernels::residual_layer_norm(r, x, w, b);
      const at::Tensor sum = out.sum.to(at::kDouble);
      if (full) expect_close(out.sum, r.to(at::kDouble).add(x.to(at::kDouble)), "sum");
      const auto d = [](const at::Tensor& t) { return t.defined() ? t.to(at::kDouble) : t; };
      const auto [normed, mean, rstd] = at::native_layer_norm(sum, {width}, d(w), d(b), 1e-5);
      if (width > 1) expect_close(out.normed, normed, "normed");
      const at::Tensor g = random({rows, width}), past = full ? random({rows, width}) : at::Tensor();
      at::Tensor gw = at::full({width}, 0.5, wide()), gb = full ? at::full({width}, 0.25, wide()) : at::Tensor();
      const at::Tensor dx = kernels::residual_layer_norm_backward(g, past, out.sum, out.mean, out.rstd, w, gw, gb);
      const auto [dx2, gw2, gb2] = at::native_layer_norm_backward(d(g), sum, {width}, mean, rstd, d(w), at::ones({width}, at::kDouble), {true, true, true});
      if (width > 1) expect_close(dx, full ? dx2.add(d(past)) : dx2, "dx");
      if (width > 1) expect_close(gw, gw2.add(0.5), "grad_weight");
      if (full) expect_close(gb, gb2.add(0.25), "grad_bias");
    }
  }
}

TEST_P(Kernels, CrossEntropyAndItsGradient) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 3}, {384, 65}, {9, 1000}}) {
    const at::Tensor logits = random({rows, width}).mul(3), targets = at::randint(width, {rows}, at::kLong);
    if (rows > 3) targets[2].fill_(-1);
    at::Tensor exact = logits.to(at::kDouble).set_requires_grad(true);
    const at::Tensor wanted = at::cross_entropy_loss(exact, targets, {}, at::Reduction::Sum, -1);
    wanted.backward();
    EXPECT_NEAR(kernels::cross_entropy(logits, targets).item<double>(), wanted.item<double>(), GetParam().tolerance * (1 + wanted.item<double>()));
    at::Tensor in_place = logits.clone();
    EXPECT_NEAR(kernels::cross_entropy_in_place(in_place, targets).item<double>(), wanted.item<double>(), GetParam().tolerance * (1 + wanted.item<double>()));
    if (width > 1) expect_close(in_place, exact.grad(), "gradient");
    if (rows > 3) {
      EXPECT_EQ(in_place[2].abs().sum().item<double>(), 0);
    }
  }
}

TEST_P(Kernels, CrossEntropyOfNothing) {
  EXPECT_EQ(kernels::cross_entropy_in_place(at::empty({0, 5}, GetParam().dtype), at::empty({0}, at::kLong)).item<double>(), 0);
}

TEST_P(Kernels, SumOfSquares) {
  for (const int64_t n : {0, 1, 17, 100003}) {
    const at::Tensor x = random({n});
    expect_close(kernels::sum_of_squares(x), x.to(at::kDouble).square().sum().view({1}), "sum of squares");
  }
}

TEST_P(Kernels, AdamWFollowsItsFormula) {
  const int64_t n = 1003, decay = 400;
  const at::Tensor g = random({n});
  at::Tensor w = at::randn({n}, wide()), m = at::randn({n}, wide()), v = at::rand({n}, wide()), model = at::full({n}, 9, GetParam().dtype);
  const kernels::AdamWStep s{1e-2, 0.9, 0.95, 1e-8, 0.1, 3};
  const auto d = [](const at::Tensor& t) { return t.to(at::kDouble).clone(); };
  const at::Tensor grad = d(g).mul(0.37), m2 = d(m).mul(0.9).add(grad, 0.1), v2 = d(v).mul(0.95).add(grad.square(), 0.05);
  at::Tensor w2 = d(w);
  w2.narrow(0, 0, decay).mul_(1 - 1e-2 * 0.1);
  w2.sub_(m2.div(1 - std::pow(0.9, 3)).div(v2.div(1 - std::pow(0.95, 3)).sqrt().add(1e-8)).mul(1e-2));
  kernels::adamw(w, g, m, v, model, decay, at::full({1}, 0.37, wide()), s);
  const double exact = wide() == at::kDouble ? 1e-14 : 1e-6;
  EXPECT_LE(relative_error(w, w2), exact);
  EXPECT_LE(relative_error(m, m2), exact);
  EXPECT_LE(relative_error(v, v2), exact);
  EXPECT_TRUE(model.equal(w.to(model.scalar_type())));
}

TEST_P(Kernels, ADropoutMaskDependsOnTheGlobalSampleAlone) {
  const at::Tensor x = random({6, 5, 7});
  const kernels::DropoutKey whole{77, 100, 0.4};
  const at::Tensor all = kernels::dropout(x, whole);
  for (int64_t first = 0; first < 6; first += 2) {
    kernels::DropoutKey part = whole;
    part.first_sample += first;
    EXPECT_TRUE(kernels::dropout(x.narrow(0, first, 2).contiguous(), part).equal(all.narrow(0, first, 2)));
  }
  kernels::DropoutKey other = whole;
  other.key = 78;
  EXPECT_FALSE(kernels::dropout(x, other).equal(all));
}

TEST_P(Kernels, DropoutKeepsAndScales) {
  const at::Tensor x = at::ones({1000, 100}, GetParam().dtype);
  const at::Tensor y = kernels::dropout(x, {1, 0, 0.25}).to(at::kDouble);
  EXPECT_NEAR(y.ne(0).to(at::kDouble).mean().item<double>(), 0.75, 0.01);
  EXPECT_NEAR(y.max().item<double>(), 4.0 / 3, 1e-2);
  EXPECT_TRUE(kernels::dropout(x, {1, 0, 0}).equal(x));
}

TEST_P(Kernels, NoBitDependsOnTheNumberOfThreads) {
  const auto everything = [&] {
    std::vector<at::Tensor> out;
    const at::Tensor x = at::linspace(-3, 3, 200 * 96, at::kDouble).view({200, 96}).sin().to(GetParam().dtype), w = at::ones({96}, GetParam().dtype);
    const auto n = kernels::residual_layer_norm(x, x, w, {});
    at::Tensor gw = at::zeros({96}, wide());
    out = {n.normed, kernels::residual_layer_norm_backward(x, x, n.sum, n.mean, n.rstd, w, gw, {}), gw, kernels::sum_of_squares(x.repeat({20, 10})),
           kernels::gelu(x), kernels::cross_entropy(x, at::zeros({200}, at::kLong))};
    return out;
  };
  at::set_num_threads(1);
  const auto one = everything();
  at::set_num_threads(2);
  const auto two = everything();
  at::set_num_threads(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(two[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Kernels, all_dtypes(), dtype_name);

TEST(KernelArguments, WrongOnesAreRefused) {
  const at::Tensor x = at::randn({4, 6}), w = at::ones({6}), scale = at::ones({1});
  EXPECT_THROW(kernels::residual_layer_norm(x, x, at::ones({5}), {}), CheckError);
  EXPECT_THROW(kernels::residual_layer_norm(x, at::randn({4, 5}), w, {}), CheckError);
  EXPECT_THROW(kernels::gelu(x.t()), CheckError);
  EXPECT_THROW(kernels::gelu(at::ones({3}, at::kLong)), CheckError);
  EXPECT_THROW(kernels::gelu_backward(x.to(at::kDouble), x), CheckError);
  EXPECT_THROW(kernels::cross_entropy(x, at::zeros({3}, at::kLong)), CheckError);
  EXPECT_THROW(kernels::cross_entropy(x, at::full({4}, 6, at::kLong)), CheckError);
  EXPECT_THROW(kernels::dropout(x, {1, 0, 1.0}), CheckError);
  EXPECT_THROW(kernels::adamw(w, w, w, at::ones({5}), {}, 0, scale, {1e-3, 0.9, 0.9, 1e-8, 0, 1}), CheckError);
  EXPECT_THROW(kernels::adamw(w, w, w, w, {}, 7, scale, {1e-3, 0.9, 0.9, 1e-8, 0, 1}), CheckError);
}

TEST(Philox, KnownAnswers) {
  // Of the authors' Random123 distribution, kat_vectors: philox4x32 10.
  const auto zero = philox(0, 0, 0);
  EXPECT_EQ(zero.v[0], 0x6627e8d5u);
  EXPECT_EQ(zero.v[1], 0xe169c58du);
  EXPECT_EQ(zero.v[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.v[3], 0x9b00dbd8u);
  const auto ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.v[0], 0x408f276du);
  EXPECT_EQ(ones.v[1], 0x41c83b0eu);
  EXPECT_EQ(ones.v[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.v[3], 0x6d5451fdu);
}

}  // namespace
}  // namespace muster::worker
