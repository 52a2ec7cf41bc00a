#pragma once
// What the dispatching functions ask of their arguments; each breach is a CheckError.

#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/base/error.h"

namespace muster::worker::kernels {

inline void check_float(const at::Tensor& t) { MUSTER_CHECK(at::isFloatingType(t.scalar_type()) && t.is_contiguous()); }

inline void check_dtype(const at::Tensor& t, at::ScalarType wanted) {
  MUSTER_CHECK_EQ(toString(t.scalar_type()), std::string_view(toString(wanted)));
}

inline void check_like(const at::Tensor& t, const at::Tensor& like) {
  check_float(t);
  MUSTER_CHECK(t.sizes() == like.sizes());
  MUSTER_CHECK(t.device() == like.device());
  check_dtype(t, like.scalar_type());
}

inline void check_vector(const at::Tensor& t, int64_t n, const at::Tensor& like) {
  if (!t.defined()) return;
  check_float(t);
  MUSTER_CHECK_EQ(t.numel(), n);
  MUSTER_CHECK(t.device() == like.device());
}

// The same, and of that dtype: the CUDA code reads it as such.
inline void check_vector_of(const at::Tensor& t, int64_t n, const at::Tensor& like, at::ScalarType dtype) {
  check_vector(t, n, like);
  if (t.defined()) check_dtype(t, dtype);
}

// Sums run in this type.
inline at::ScalarType wide_type(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace muster::worker::kernels
