#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace muster::worker {

// Optimizer states in 8 bits (Dettmers et al., ICLR 2022): blocks of 256 elements, each scaled by its largest magnitude, in a dynamic
// map: a code is a decimal exponent 10^-e (e leading zeros) and a fraction in [0.1, 1] of the bits that are left, so that small
// values keep their relative precision.
struct EightBit {
  static constexpr int64_t kBlock = 256;

  // is_signed: for values of both signs; else for values >= 0.
  EightBit(bool is_signed, at::TensorOptions options);

  // values (n) float32 -> codes (n) uint8 and scales (ceil(n / 256)) float32, in place. A value is off by at most half the distance
  // of its neighbours in the map; without a sign, what is above 0 stays so. Encoding what was decoded gives the same codes.
  void encode(const at::Tensor& values, at::Tensor codes, at::Tensor scales) const;
  at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales) const;

  bool is_signed_;
  at::Tensor map;        // (256) ascending, in [-1, 1] or [0, 1]
  at::Tensor midpoints;  // (255)
};

}  // namespace muster::worker
