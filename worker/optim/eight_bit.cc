#include "worker/optim/eight_bit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>

#include "comm/base/error.h"

namespace muster::worker {
namespace {

constexpr int kExponents = 7;

// 256 values: fractions in the middle of equal parts of [0.1, 1], times 10^-e; 0 and 1, and with a sign -1 instead of the least of all.
std::vector<float> dynamic_map(bool is_signed) {
  std::vector<float> values = {0.0f, 1.0f};
  for (int e = 0; e < kExponents; ++e) {
    const int fractions = 1 << ((is_signed ? 6 : 7) - e);
    for (int i = 0; i < fractions; ++i) {
      const double value = (0.1 + 0.9 * (i + 0.5) / fractions) * std::pow(10.0, -e);
      values.push_back(static_cast<float>(value));
      if (is_signed) values.push_back(static_cast<float>(-value));
    }
  }
  std::sort(values.begin(), values.end());
  if (is_signed) {
    values.erase(std::lower_bound(values.begin(), values.end(), 0.0f) - 1);
    values.insert(values.begin(), -1.0f);
  }
  MUSTER_CHECK_EQ(values.size(), 256u);
  return values;
}

at::Tensor in_blocks(const at::Tensor& values) {
  const int64_t n = values.numel(), padded = (n + EightBit::kBlock - 1) / EightBit::kBlock * EightBit::kBlock;
  return (padded == n ? values : at::constant_pad_nd(values, {0, padded - n})).view({-1, EightBit::kBlock});
}

}  // namespace

EightBit::EightBit(bool is_signed, at::TensorOptions options)
    : is_signed_(is_signed), map(at::tensor(dynamic_map(is_signed)).to(options.dtype(at::kFloat))), midpoints(map.narrow(0, 0, 255).add(map.narrow(0, 1, 255)).mul_(0.5)) {}

void EightBit::encode(const at::Tensor& values, at::Tensor codes, at::Tensor scales) const {
  const at::Tensor blocks = in_blocks(values);
  if (blocks.numel() == 0) return;
  scales.copy_(blocks.abs().amax({1}));
  const at::Tensor scaled = blocks.div(scales.unsqueeze(1).clamp_min(1e-38f));
  at::Tensor nearest = at::bucketize(scaled, midpoints, true);
  // A second moment that became zero would make its element's step enormous.
  if (!is_signed_) nearest = nearest.max(blocks.gt(0).to(nearest.scalar_type()));
  codes.copy_(nearest.view({-1}).narrow(0, 0, codes.numel()));
}

at::Tensor EightBit::decode(const at::Tensor& codes, const at::Tensor& scales) const {
  const at::Tensor values = map.index_select(0, codes.to(at::kInt));
  return in_blocks(values).mul(scales.unsqueeze(1)).view({-1}).narrow(0, 0, codes.numel());
}

}  // namespace muster::worker
