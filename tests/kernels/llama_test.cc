// The CPU kernels of the Llama block against ATen's operations and against formulas.

#include "worker/kernels/llama.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "tests/kernels/dtype_cases.h"

namespace muster::worker {
namespace {

using namespace testing;
using kernels::Rotary;

class LlamaKernels : public ByDtype {
 protected:
  at::Tensor table(int64_t length, int64_t width) const {
    return kernels::rotary_table(length, width, 10000, at::TensorOptions().dtype(wide()));
  }
};

at::Tensor exact_leaf(const at::Tensor& t) { return t.to(at::kDouble).clone().set_requires_grad(true); }

TEST_P(LlamaKernels, ResidualRmsNormAndItsGradient) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {65, 16}, {384, 128}, {130, 100}}) {
    for (const bool full : {false, true}) {
      const at::Tensor r = random({rows, width}), x = full ? random({rows, width}) : at::Tensor(), w = random({width});
      const auto out = kernels::residual_rms_norm(r, x, w, 0.25);
      if (full) expect_close(out.sum, r.to(at::kDouble).add(x.to(at::kDouble)), "sum");
      const at::Tensor sum = exact_leaf(out.sum), weight = exact_leaf(w), wanted = at::rms_norm(sum, {width}, weight, 0.25);
      expect_close(out.normed, wanted, "normed");
      const at::Tensor g = random({rows, width}), past = full ? random({rows, width}) : at::Tensor();
      at::Tensor gw = at::full({width}, 0.5, wide());
      const at::Tensor dx = kernels::residual_rms_norm_backward(g, past, out.sum, out.rstd, w, gw);
      wanted.backward(g.to(at::kDouble));
      if (width > 1) {  // a single value may cancel
        expect_close(dx, full ? sum.grad().add(past.to(at::kDouble)) : sum.grad(), "dx");
        expect_close(gw, weight.grad().add(0.5), "grad_weight");
      }
      EXPECT_TRUE(kernels::residual_rms_norm_backward(g, past, out.sum, out.rstd, w, {}).equal(dx));
    }
  }
}

TEST_P(LlamaKernels, SwigluAndItsGradient) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 7}, {65, 16}, {200, 384}}) {
    const at::Tensor x = random({rows, 2 * width}).mul(4), g = random({rows, width});
    const at::Tensor exact = exact_leaf(x), wanted = at::silu(exact.narrow(1, 0, width)).mul(exact.narrow(1, width, width));
    wanted.backward(g.to(at::kDouble));
    expect_close(kernels::swiglu(x), wanted, "swiglu");
    expect_close(kernels::swiglu_backward(g, x), exact.grad(), "swiglu_backward");
  }
}

TEST_P(LlamaKernels, SwigluOfLargeGatesIsFinite) {
  const at::Tensor x = at::linspace(-1000, 1000, 64, at::kDouble).to(GetParam().dtype).view({64, 1}).repeat({1, 2}).contiguous();
  const at::Tensor exact = exact_leaf(x), wanted = at::silu(exact.narrow(1, 0, 1)).mul(exact.narrow(1, 1, 1)).mul(1e-2);
  wanted.sum().backward();
  EXPECT_LE(relative_error(kernels::swiglu(x).to(at::kDouble).mul(1e-2).clamp(-655, 655), wanted.clamp(-655, 655)),
            GetParam().tolerance);
  expect_close(kernels::swiglu_backward(at::full({64, 1}, 1e-2, GetParam().dtype), x), exact.grad(), "swiglu_backward");
}

// Element (row, head, i) of a (rows, C) tensor, as float64.
double at_head(const at::Tensor& t, int64_t row, int64_t column) { return t[row][column].item<double>(); }

TEST_P(LlamaKernels, RotaryFollowsItsFormula) {
  const int64_t batch = 2, length = 5, width = 6, heads = 3, columns = 4 * width;  // the fourth stays
  const at::Tensor x = random({batch * length, columns});
  for (const bool interleaved : {false, true}) {
    const at::Tensor y = kernels::rotary(x, table(length, width), {heads, interleaved, false});
    at::Tensor wanted = x.to(at::kDouble).clone();
    for (int64_t n = 0; n < batch * length; ++n) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < width / 2; ++i) {
          const int64_t first = h * width + (interleaved ? 2 * i : i), second = interleaved ? first + 1 : first + width / 2;
          const double angle =
              static_cast<double>(n % length) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
          const double a = at_head(x, n, first), b = at_head(x, n, second);
          wanted[n][first].fill_(a * std::cos(angle) - b * std::sin(angle));
          wanted[n][second].fill_(a * std::sin(angle) + b * std::cos(angle));
        }
      }
    }
    expect_close(y, wanted, interleaved ? "interleaved" : "halves");
    EXPECT_TRUE(y.narrow(1, heads * width, width).equal(x.narrow(1, heads * width, width)));
    EXPECT_TRUE(y[0].equal(x[0]) && y[length].equal(x[length])) << "position 0 stays";
    expect_close(kernels::rotary(y, table(length, width), {heads, interleaved, true}), x, "there and back");
  }
}

TEST_P(LlamaKernels, RotaryScoresDependOnTheDistanceAlone) {
  const int64_t length = 9, width = 8;
  const at::Tensor q = at::linspace(0.5, 1.5, width, at::kDouble).to(GetParam().dtype).repeat({length, 1}), k = at::ones_like(q);
  for (const bool interleaved : {false, true}) {
    const Rotary how{1, interleaved, false};
    const at::Tensor a = kernels::rotary(q, table(length, width), how).to(at::kDouble),
                     b = kernels::rotary(k, table(length, width), how).to(at::kDouble);
    const at::Tensor scores = a.mm(b.t());
    const double tolerance = 8 * GetParam().tolerance * q[0].norm().item<double>() * k[0].norm().item<double>();
    for (int64_t m = 1; m < length; ++m) {
      for (int64_t n = 1; n < length; ++n)
        EXPECT_NEAR(scores[m][n].item<double>(), scores[m - 1][n - 1].item<double>(), tolerance);
    }
    EXPECT_GT(std::abs(scores[0][0].item<double>() - scores[8][0].item<double>()), tolerance);
  }
}

TEST_P(LlamaKernels, NothingOfNothing) {
  const at::Tensor none = at::empty({0, 8}, GetParam().dtype), w = at::ones({8}, GetParam().dtype);
  const auto n = kernels::residual_rms_norm(none, none, w, 1e-5);
  at::Tensor gw = at::zeros({8}, wide());
  EXPECT_EQ(kernels::residual_rms_norm_backward(none, none, n.sum, n.rstd, w, gw).numel(), 0);
  EXPECT_EQ(gw.abs().sum().item<double>(), 0);
  EXPECT_EQ(kernels::swiglu(none).sizes(), at::IntArrayRef({0, 4}));
  EXPECT_EQ(kernels::rotary(none, table(3, 4), {2, false, false}).numel(), 0);
}

TEST_P(LlamaKernels, NoBitDependsOnTheNumberOfThreads) {
  const auto everything = [&] {
    const at::Tensor x = at::linspace(-3, 3, 400 * 96, at::kDouble).view({400, 96}).sin().to(GetParam().dtype),
                     w = at::ones({96}, GetParam().dtype);
    const auto n = kernels::residual_rms_norm(x, x, w, 1e-5);
    at::Tensor gw = at::zeros({96}, wide());
    const at::Tensor dx = kernels::residual_rms_norm_backward(x, x, n.sum, n.rstd, w, gw), s = kernels::swiglu(x);
    return std::vector<at::Tensor>{
        n.normed, dx, gw, s, kernels::swiglu_backward(s, x), kernels::rotary(x, table(100, 8), {7, false, false})};
  };
  at::set_num_threads(1);
  const auto one = everything();
  at::set_num_threads(2);
  const auto two = everything();
  at::set_num_threads(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(two[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LlamaKernels, all_dtypes(), dtype_name);

TEST(LlamaKernelArguments, WrongOnesAreRefused) {
  const at::Tensor x = at::randn({4, 6}), w = at::ones({6}),
                   table = kernels::rotary_table(4, 6, 10000, at::TensorOptions().dtype(at::kFloat));
  EXPECT_THROW(kernels::residual_rms_norm(x, x, at::ones({5}), 1e-5), CheckError);
  EXPECT_THROW(kernels::residual_rms_norm(x, at::randn({4, 5}), w, 1e-5), CheckError);
  EXPECT_THROW(kernels::residual_rms_norm(x, {}, w.to(at::kDouble), 1e-5), CheckError);
  EXPECT_THROW(kernels::residual_rms_norm(x, {}, {}, 1e-5), CheckError);
  EXPECT_THROW(kernels::residual_rms_norm_backward(x, {}, x, at::ones({3}), w, {}), CheckError);
  EXPECT_THROW(kernels::swiglu(x.t()), CheckError);
  EXPECT_THROW(kernels::swiglu(at::randn({4, 5})), CheckError);
  EXPECT_THROW(kernels::swiglu_backward(x, x), CheckError);
  EXPECT_THROW(kernels::swiglu_backward(at::randn({4, 3}, at::kDouble), x), CheckError);
  EXPECT_THROW(kernels::rotary_table(4, 5, 10000, at::TensorOptions()), CheckError);
  EXPECT_THROW(kernels::rotary(x, table, {2, false, false}), CheckError);
  EXPECT_THROW(kernels::rotary(x, table.narrow(0, 0, 3), {1, false, false}), CheckError);
  EXPECT_THROW(kernels::rotary(x, table.to(at::kDouble), {1, false, false}), CheckError);
}

}  // namespace
}  // namespace muster::worker
