#pragma once
// Gradients as int8: blocks of 256 elements with a scale each.

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/compression_loops.h"

namespace muster::sharding {

// How a bucket of `elements` lies in `parts` rows of a uint8 tensor (parts, row_bytes): a row is `part` codes, then their
// scales as float32. Element i is code i % part of row i / part; what is beyond the bucket's end is zero. A value is code *
// scale, code in [-127, 127]; kNanCode is NaN, and stands for whatever is not finite in float32.
struct Int8Layout {
  static constexpr int64_t kBlock = kCodeBlock;

  Int8Layout(int64_t elements, int parts);
  int64_t begin(int row) const { return std::min(row * part, elements); }
  int64_t size(int row) const { return begin(row + 1) - begin(row); }

  int64_t elements, part, row_bytes;
  int parts;
};

// All or some rows of a layout. values: 1-D, at most what the rows hold; the rest of the rows becomes zero. An element is
// off by at most half of its block's absmax / 127. Blocking: no.
void encode_int8(const at::Tensor& values, const at::Tensor& rows);
// values (n): takes the first n elements of the rows.
void decode_int8(const at::Tensor& rows, const at::Tensor& values, Into into = Into::kReplace);
// A bool on the device: no element of the rows is NaN.
at::Tensor all_finite_int8(const at::Tensor& rows);

// The same by operations of LibTorch, which every device has: for all but the CPU.
void encode_int8_anywhere(const at::Tensor& values, const at::Tensor& rows);
void decode_int8_anywhere(const at::Tensor& rows, const at::Tensor& values, Into into);

}  // namespace muster::sharding
