// The arithmetic against LibTorch's own conversions.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include "comm/collective/host/reduce.h"

namespace muster::comm::host {
namespace {

template <typename T>
T from_bits(uint16_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// NaNs are alike, zeros are not.
template <typename T>
bool same(T a, T b) {
  if (std::isnan(static_cast<float>(a)) || std::isnan(static_cast<float>(b)))
    return std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b));
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Every bit pattern, as the sum with a partner that reaches all magnitudes.
template <typename T>
void check_sums(DType dtype) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<T> a, b, sum(1 << 16);
    for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
      a.push_back(from_bits<T>(static_cast<uint16_t>(bits)));
      const auto partner = round == 0 ? 0u : round == 1 ? bits ^ 0x8000 : round < 10 ? bits + random() % 64 : random();
      b.push_back(from_bits<T>(static_cast<uint16_t>(partner)));
    }
    const void* inputs[] = {a.data(), b.data()};
    reduce(dtype, ReduceOp::kSum, sum.data(), inputs, 2, sum.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      const T wanted(static_cast<float>(a[i]) + static_cast<float>(b[i]));
      ASSERT_TRUE(same(sum[i], wanted)) << round << ": " << static_cast<float>(a[i]) << " + " << static_cast<float>(b[i]) << " = "
                                        << static_cast<float>(sum[i]) << ", wanted " << static_cast<float>(wanted);
    }
  }
}

TEST(Reduce, Float16RoundsLikeLibTorch) { check_sums<at::Half>(DType::kFloat16); }
TEST(Reduce, BFloat16RoundsLikeLibTorch) { check_sums<at::BFloat16>(DType::kBFloat16); }

// 1 + 2^-8 is halfway between two bfloat16: rounding after each addition would lose both small terms.
TEST(Reduce, ManyInputsAreRoundedOnce) {
  const at::BFloat16 one(1.0f), half_step(0.00390625f);
  const void* inputs[] = {&one, &half_step, &half_step};
  at::BFloat16 sum;
  reduce(DType::kBFloat16, ReduceOp::kSum, &sum, inputs, 3, 1);
  EXPECT_EQ(static_cast<float>(sum), 1.0078125f);
}

TEST(Reduce, AddsFromLeftToRight) {
  const float big = 1e8f, minus = -1e8f, small = 1.0f;
  const void *first[] = {&big, &minus, &small}, *last[] = {&small, &big, &minus};
  float sum = 0;
  reduce(DType::kFloat32, ReduceOp::kSum, &sum, first, 3, 1);
  EXPECT_EQ(sum, 1.0f);
  reduce(DType::kFloat32, ReduceOp::kSum, &sum, last, 3, 1);
  EXPECT_EQ(sum, 0.0f);
}

TEST(Reduce, NaNOfAnyInputShows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {nan, 1, 1, 2}, b[] = {1, nan, 1, 3}, c[] = {1, 1, nan, -1};
  const void* inputs[] = {a, b, c};
  for (int count : {2, 3})
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      float out[4];
      reduce(DType::kFloat32, op, out, inputs, count, 4);
      for (int i = 0; i < count; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
      EXPECT_FALSE(std::isnan(out[3]));
    }
}

// All block boundaries, an output that is one of the inputs, and addresses that are not aligned.
TEST(Reduce, AnyLengthAliasAndAlignment) {
  for (size_t count : {0, 1, 63, 2047, 2048, 2049, 5000})
    for (int inputs : {1, 2, 3, 5})
      for (int alias = 0; alias < inputs; ++alias) {
        std::vector<std::vector<char>> memory(inputs, std::vector<char>(count * 8 + 1));
        std::vector<const void*> in;
        for (int k = 0; k < inputs; ++k) {
          char* data = memory[k].data() + 1;
          for (int64_t i = 0, value; i < static_cast<int64_t>(count); ++i) std::memcpy(data + i * 8, &(value = i * 10 + k), 8);
          in.push_back(data);
        }
        char* out = memory[alias].data() + 1;
        reduce(DType::kInt64, ReduceOp::kSum, out, in.data(), inputs, count);
        for (int64_t i = 0, value; i < static_cast<int64_t>(count); ++i) {
          std::memcpy(&value, out + i * 8, 8);
          ASSERT_EQ(value, i * 10 * inputs + inputs * (inputs - 1) / 2) << count << " " << inputs << " " << alias;
        }
      }
}

TEST(Reduce, Int64WrapsAround) {
  const int64_t most = std::numeric_limits<int64_t>::max(), one = 1;
  const void* inputs[] = {&most, &one};
  int64_t sum = 0;
  reduce(DType::kInt64, ReduceOp::kSum, &sum, inputs, 2, 1);
  EXPECT_EQ(sum, std::numeric_limits<int64_t>::min());
}

}  // namespace
}  // namespace muster::comm::host
