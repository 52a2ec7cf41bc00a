#pragma once
// What the CPU kernels share: one type to compute in, fixed blocks for reductions.

#include <algorithm>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "worker/kernels/cpu_rows.h"

namespace muster::worker::kernels {

// Reductions are cut into blocks of fixed size and summed in block order, so that the number of threads changes no bit.
constexpr int64_t kBlockElements = 1 << 15;
constexpr int64_t kBlockRows = 64;

inline int64_t grain_for_rows(int64_t width) { return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, width)); }

inline bool is_half(const at::Tensor& t) { return c10::elementSize(t.scalar_type()) == 2; }
inline at::Tensor wide(const at::Tensor& t) { return t.defined() && is_half(t) ? t.to(at::kFloat) : t; }
inline at::Tensor as(const at::Tensor& t, const at::Tensor& like) { return t.to(like.scalar_type()); }

template <typename F>
auto by_type(const at::Tensor& t, F&& f) {
  return t.scalar_type() == at::kDouble ? f(double{}) : f(float{});
}
template <typename T>
T* data_of(const at::Tensor& t) {
  return t.defined() ? t.data_ptr<T>() : nullptr;
}

// Adds the block sums, in block order, into the parameter's gradient.
template <typename T>
void add_blocks(at::Tensor gradient, const std::vector<T>& blocks, int64_t width) {
  if (!gradient.defined()) return;
  at::Tensor sum = at::empty({width}, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  T* to = sum.mutable_data_ptr<T>();
  std::fill_n(to, width, T(0));
  for (size_t at = 0; at < blocks.size(); at += width) add_row(to, blocks.data() + at, to, width);
  gradient.add_(sum);
}

}  // namespace muster::worker::kernels
