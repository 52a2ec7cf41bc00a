// 8-bit optimizer states: the map, the error of a round trip, and training with them.

#include "worker/kernels/optimizers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace muster::worker {
namespace {

kernels::EightBitMoment moment_of_zeros(int64_t n) { return {at::zeros({n}, at::kByte), at::zeros({(n + 255) / 256})}; }

at::Tensor decoded(const at::Tensor& values, bool is_signed) {
  const kernels::EightBitMoment moment = moment_of_zeros(values.numel());
  kernels::encode_8bit(values, moment, is_signed);
  return kernels::decode_8bit(moment, is_signed);
}
// (256) what each code stands for.
at::Tensor map_of(bool is_signed) {
  return kernels::decode_8bit({at::arange(256, at::kByte), at::ones({1})}, is_signed);
}

// The paper's definition, written anew: for each exponent, the middles of 2^bits equal parts of [0.1, 1].
std::vector<double> magnitudes(int most_bits) {
  std::vector<double> all = {0};
  for (int bits = 0; bits <= most_bits; ++bits) {
    for (int i = 0; i < 1 << bits; ++i) all.push_back((0.1 + 0.9 * (i + 0.5) / (1 << bits)) * std::pow(10.0, bits - most_bits));
  }
  all.push_back(1);
  return all;
}

TEST(EightBitMap, IsThePapers) {
  const at::Tensor with_sign = map_of(true), without = map_of(false);
  const auto small = magnitudes(6), large = magnitudes(7);
  ASSERT_EQ(small.size(), 129u);
  ASSERT_EQ(large.size(), 257u);
  for (int code = 0; code < 256; ++code) {
    const double wanted = code >= 127 ? small[code - 127] : -small[128 - code];
    EXPECT_FLOAT_EQ(with_sign[code].item<float>(), static_cast<float>(wanted)) << code;
    EXPECT_FLOAT_EQ(without[code].item<float>(), static_cast<float>(code == 0 ? 0 : large[code + 1])) << code;
  }
}

// Values over twelve decades, with block sizes that end in the middle; the largest of a block once above and once below zero.
at::Tensor wide_range(int64_t n) { return at::randn({n}).mul_(at::rand({n}).mul_(-28).exp_()); }

TEST(EightBitMap, EncodingTakesTheNearest) {
  for (const bool is_signed : {true, false}) {
    const at::Tensor map = map_of(is_signed);
    for (const int64_t n : {1, 16, 255, 256, 257, 4000}) {
      const at::Tensor values = is_signed ? wide_range(n) : wide_range(n).abs_(), back = decoded(values, is_signed);
      for (int64_t begin = 0; begin < n; begin += 256) {
        const at::Tensor block = values.narrow(0, begin, std::min<int64_t>(256, n - begin)), largest = block.abs().max();
        const at::Tensor distances = block.unsqueeze(1).sub(map.mul(largest)).abs_();  // (block, 256)
        const at::Tensor nearest = std::get<0>(distances.min(1)), mine = back.narrow(0, begin, block.numel()).sub(block).abs_();
        // Half way between two either will do; and a small value without a sign takes the least above zero.
        const at::Tensor allowed = nearest.add(block.abs(), 2e-6), tiny = block.abs().lt(largest.mul(3.3e-7));
        EXPECT_TRUE(mine.le(allowed).logical_or_(tiny.logical_and(at::full({}, !is_signed, at::kBool))).all().item<bool>()) << is_signed << n;
      }
    }
  }
}

TEST(EightBitMap, TheErrorIsBoundedAndWhatIsPositiveStaysSo) {
  for (const bool is_signed : {true, false}) {
    const at::Tensor values = is_signed ? wide_range(65'536) : wide_range(65'536).abs_(), back = decoded(values, is_signed);
    const at::Tensor largest = values.view({-1, 256}).abs().amax({1}).repeat_interleave(256), error = back.sub(values).abs();
    // Within decade e below the largest, parts are 0.9 / 2^(top - e) of a decade wide; the error is half of that.
    for (int e = 0; e < 6; ++e) {
      const double decade = std::pow(10.0, -e), half = 0.45 * decade / (1 << ((is_signed ? 6 : 7) - e));
      const at::Tensor inside = values.abs().le(largest.mul(decade)).logical_and(values.abs().gt(largest.mul(decade / 10)));
      EXPECT_GT(inside.sum().item<int64_t>(), 1000);
      EXPECT_TRUE(error.le(largest.mul(half * 1.00001)).logical_or(inside.logical_not()).all().item<bool>()) << is_signed << e;
    }
    EXPECT_TRUE(is_signed || back.gt(0).equal(values.gt(0)));
  }
}

TEST(EightBitMap, EncodingTwiceChangesNothing) {
  for (const bool is_signed : {true, false}) {
    const at::Tensor once = decoded(is_signed ? wide_range(3000) : wide_range(3000).abs_(), is_signed);
    EXPECT_TRUE(decoded(once, is_signed).equal(once));
    const at::Tensor every = map_of(is_signed);
    EXPECT_TRUE(decoded(every, is_signed).equal(every));
  }
}

TEST(EightBitMap, ExtremeValues) {
  EXPECT_EQ(decoded(at::zeros({300}), true).abs().max().item<float>(), 0);
  EXPECT_EQ(decoded(at::zeros({300}), false).abs().max().item<float>(), 0);
  EXPECT_EQ(decoded(at::full({16}, 1e-42), true).abs().max().item<float>(), 0);  // no code for a scale that is not a normal number
  EXPECT_TRUE(decoded(at::full({16}, 3e38), true).equal(at::full({16}, 3e38)));
  EXPECT_TRUE(decoded(at::full({16}, -2e-38), true).equal(at::full({16}, -2e-38)));
  at::Tensor values = at::ones({16});
  values[3].fill_(std::nan(""));
  EXPECT_NO_THROW(decoded(values, true));
  EXPECT_NO_THROW(decoded(values, false));
}

// A badly scaled quadratic with noisy gradients.
double trained_loss(bool eight_bits) {
  const int64_t n = 1040;
  const at::Tensor curvature = at::rand({n}).mul_(-4).exp_(), goal = at::randn({n}), scale = at::ones({1});
  at::Tensor w = at::zeros({n}), m = at::zeros({n}), v = at::zeros({n});
  const kernels::EightBitMoment m8 = moment_of_zeros(n), v8 = moment_of_zeros(n);
  for (int64_t i = 1; i <= 400; ++i) {
    const at::Tensor g = w.sub(goal).mul_(curvature).add_(at::randn({n}), 0.01);
    const kernels::AdamWStep step{0.05 * (1 - static_cast<double>(i) / 401), 0.9, 0.99, 1e-8, 0, i};
    eight_bits ? kernels::adamw_8bit(w, g, m8, v8, {}, 0, scale, step) : kernels::adamw(w, g, m, v, {}, 0, scale, step);
  }
  return w.sub(goal).square_().mul_(curvature).sum().item<double>() / goal.square().mul(curvature).sum().item<double>();
}

TEST(AdamW8Bit, TrainsNearlyAsWellAsAdamW) {
  const double exactly = trained_loss(false), nearly = trained_loss(true);
  EXPECT_LT(exactly, 1e-3);
  EXPECT_LT(nearly, 2 * exactly);
}

}  // namespace
}  // namespace muster::worker
