#include "sharding/data_parallel/int8_codec.h"

#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

constexpr int64_t kBlock = Int8Layout::kBlock;
constexpr int64_t kScaleBytes = sizeof(float);
constexpr double kLevels = 127;

int64_t part_of(const at::Tensor& rows) { return rows.size(1) / (kBlock + kScaleBytes) * kBlock; }

// (rows, blocks, 256) int8
at::Tensor codes_of(const at::Tensor& rows) {
  return rows.narrow(1, 0, part_of(rows)).view(at::kChar).unflatten(1, {-1, kBlock});
}

// (rows, blocks, 1) float32
at::Tensor scales_of(const at::Tensor& rows) {
  const int64_t part = part_of(rows);
  return rows.narrow(1, part, rows.size(1) - part).view(at::kFloat).unsqueeze(2);
}

// Calls body(pointer) with the elements of a contiguous tensor on the CPU.
template <typename Body>
void with_type(const at::Tensor& values, Body body) {
  MUSTER_CHECK(values.is_contiguous());
  if (values.scalar_type() == at::kDouble) return body(values.mutable_data_ptr<double>());
  body(values.mutable_data_ptr<float>());
}

// Calls body(first element, elements, codes, scale) for every block of the rows; the last have less than 256 elements or none.
template <typename Body>
void each_block(const at::Tensor& rows, int64_t elements, Body body) {
  MUSTER_CHECK(rows.is_contiguous());
  uint8_t* const bytes = rows.mutable_data_ptr<uint8_t>();
  const int64_t row_bytes = rows.size(1), blocks = part_of(rows) / kBlock;
  at::parallel_for(0, rows.size(0) * blocks, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint8_t* const row = bytes + i / blocks * row_bytes;
      const int64_t first = std::min(i * kBlock, elements), n = std::min(kBlock, elements - first);
      auto* const codes = reinterpret_cast<int8_t*>(row + i % blocks * kBlock);
      body(first, n, codes, reinterpret_cast<float*>(row + blocks * kBlock) + i % blocks);
    }
  });
}

}  // namespace

Int8Layout::Int8Layout(int64_t elements, int parts) : elements(elements), parts(parts) {
  const int64_t blocks = (elements + kBlock - 1) / kBlock, blocks_of_part = std::max<int64_t>((blocks + parts - 1) / parts, 1);
  part = blocks_of_part * kBlock;
  row_bytes = blocks_of_part * (kBlock + kScaleBytes);
}

void encode_int8_anywhere(const at::Tensor& values, const at::Tensor& rows) {
  const at::Tensor codes = codes_of(rows), scales = scales_of(rows);
  const at::Tensor v = at::constant_pad_nd(values, {0, codes.numel() - values.numel()}).view(codes.sizes());
  const at::Tensor magnitude = v.abs(), finite = magnitude.le(std::numeric_limits<float>::max());
  at::Tensor scale = at::where(finite, magnitude, 0).amax(2, true).div_(kLevels).to(at::kFloat);
  scale = at::where(scale.lt(std::numeric_limits<float>::min()), 0, scale);  // a denormal scale would have no precision left
  scales.copy_(scale);
  const at::Tensor divisor = at::where(scale.eq(0), 1, scale).to(v.scalar_type());
  codes.copy_(at::where(finite, v.div(divisor).round_(), kNanCode));
}

void decode_int8_anywhere(const at::Tensor& rows, const at::Tensor& values, Into into) {
  const at::Tensor codes = codes_of(rows);
  at::Tensor v = codes.to(values.scalar_type()).mul_(scales_of(rows));
  v.masked_fill_(codes.eq(kNanCode), std::numeric_limits<double>::quiet_NaN());
  v = v.flatten().narrow(0, 0, values.numel());
  if (into == Into::kReplace) {
    values.copy_(v);
  } else {
    values.add_(v, into == Into::kAdd ? 1 : -1);
  }
}

void encode_int8(const at::Tensor& values, const at::Tensor& rows) {
  if (!values.is_cpu()) return encode_int8_anywhere(values, rows);
  with_type(values, [&](auto* v) {
    each_block(rows, values.numel(), [&](int64_t at, int64_t n, int8_t* codes, float* scale) {
      *scale = encode_block(v + at, n, codes);
    });
  });
}

void decode_int8(const at::Tensor& rows, const at::Tensor& values, Into into) {
  if (!values.is_cpu()) return decode_int8_anywhere(rows, values, into);
  with_type(values, [&](auto* v) {
    each_block(rows, values.numel(), [&](int64_t at, int64_t n, const int8_t* codes, const float* scale) {
      decode_block(codes, n, *scale, v + at, into);
    });
  });
}

at::Tensor all_finite_int8(const at::Tensor& rows) { return codes_of(rows).ne(kNanCode).all(); }

}  // namespace muster::sharding
