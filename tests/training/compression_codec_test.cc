// The arithmetic of compressed sums; compression_test.cc has the sums.

#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "sharding/data_parallel/int8_codec.h"
#include "sharding/data_parallel/low_rank.h"

namespace muster::sharding {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

double largest(const at::Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }

TEST(Int8Codec, IsOffByHalfAStepOfItsBlock) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {0, 1, 255, 256, 257, 5000}) {
      for (const int parts : {1, 2, 3, 4, 7}) {
        const Int8Layout layout(n, parts);
        EXPECT_EQ(layout.begin(parts), n);
        const at::Tensor rows = at::empty({parts, layout.row_bytes}, at::kByte);
        const at::Tensor values = normal_numbers(3, "codec", 1, n)[0].mul(normal_numbers(4, "codec", 1, n)[0].exp()).to(dtype);
        const at::Tensor decoded = at::empty({n}, dtype);
        encode_int8(values, rows);
        decode_int8(rows, decoded);
        EXPECT_TRUE(all_finite_int8(rows).item<bool>());
        for (int64_t i = 0; i < n; i += Int8Layout::kBlock) {
          const int64_t size = std::min(Int8Layout::kBlock, n - i);
          const at::Tensor block = values.narrow(0, i, size);
          EXPECT_LE(largest(block.sub(decoded.narrow(0, i, size))), largest(block) / 127 * 0.50001);
        }
      }
    }
  }
}

// The loops of the CPU and the operations that a GPU runs.
TEST(Int8Codec, HasTheSameBitsOnEveryPath) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {1, 256, 5000}) {
      const Int8Layout layout(n, 3);
      const at::Tensor rows = at::zeros({3, layout.row_bytes}, at::kByte), others = at::zeros_like(rows);
      at::Tensor values = normal_numbers(3, "codec", 1, n)[0].mul(normal_numbers(4, "codec", 1, n)[0].mul(9).exp()).to(dtype);
      if (n > 300) {
        values.narrow(0, 256, 256).copy_(at::arange(256).sub(128).mul(0.25));
        values[300] = 63.5;  // the step is 0.5: some are halfway between two codes
        values[n - 1] = kNan;
        values[3] = kInf;
        values.narrow(0, 512, 256).zero_();
        values[513] = 1e-42;
      }
      encode_int8(values, rows);
      encode_int8_anywhere(values, others);
      EXPECT_TRUE(at::equal(rows, others));
      for (const Into into : {Into::kReplace, Into::kAdd, Into::kSubtract}) {
        const at::Tensor a = at::arange(n, dtype), b = a.clone();
        decode_int8(rows, a, into);
        decode_int8_anywhere(rows, b, into);
        EXPECT_TRUE(at::equal(a.nan_to_num(), b.nan_to_num()));
      }
    }
  }
}

TEST(Int8Codec, KeepsWhatIsNotFiniteInItsPlace) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor rows = at::empty({1, Int8Layout(300, 1).row_bytes}, at::kByte);
    at::Tensor values = at::zeros({300}, dtype), decoded = at::empty({300}, dtype);
    values[0] = 1;
    values[7] = kNan;
    values[8] = kInf;
    values[299] = -kInf;
    values[256] = 1e-42;  // its scale would be no normal number: 0
    encode_int8(values, rows);
    decode_int8(rows, decoded);
    EXPECT_FALSE(all_finite_int8(rows).item<bool>());
    EXPECT_NEAR(decoded[0].item<double>(), 1, 1e-6);
    EXPECT_EQ(decoded[256].item<double>(), 0);
    EXPECT_EQ(decoded.isnan().sum().item<int64_t>(), 3);
    for (const int i : {7, 8, 299}) EXPECT_TRUE(decoded[i].isnan().item<bool>());
  }
}

TEST(LowRank, OrthogonalisesAndDropsWhatIsSpanned) {
  for (const auto path : {orthogonalise, orthogonalise_anywhere}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor p = normal_numbers(1, "p", 4, 1003).to(dtype);
      p[2].copy_(p[0].add(p[1]));
      p[3].add_(p[0], 1e4);  // nearly the same: one pass would leave them askew
      path(p);
      at::Tensor wanted = at::eye(4, p.options());
      wanted[2][2] = 0;
      EXPECT_LE(largest(p.mm(p.t()).sub(wanted)), dtype == at::kFloat ? 1e-6 : 1e-14);
      at::Tensor small = at::zeros({3, 5}, dtype);
      small[1].fill_(1e-30);  // its square is no float32
      small[2][4] = 1e-41;
      path(small);
      EXPECT_NEAR(small[1].norm().item<double>(), 1, 1e-6);
      EXPECT_EQ(largest(small[0]) + largest(small[2]), 0);
      small[1][2] = kNan;
      path(small);
      EXPECT_TRUE(small[1].isnan().all().item<bool>());
    }
  }
}

TEST(LowRank, NumbersAreNormalAndFollowTheirKey) {
  const at::Tensor a = normal_numbers(1, "a", 100, 100);
  EXPECT_NEAR(a.mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(a.square().mean().item<double>(), 1, 0.05);
  EXPECT_TRUE(at::equal(a, normal_numbers(1, "a", 100, 100)));
  EXPECT_FALSE(at::equal(a, normal_numbers(2, "a", 100, 100)));
  EXPECT_FALSE(at::equal(a, normal_numbers(1, "b", 100, 100)));
}

}  // namespace
}  // namespace muster::sharding
