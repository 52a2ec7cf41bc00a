#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "worker/config/run_config.h"

namespace muster::worker {

// The dtypes that config.precision and grad_accum_dtype stand for. Gradients are accumulated and reduced in float32 (float64 for
// fp64) unless asked otherwise.
struct Precision {
  at::ScalarType parameters = at::kFloat;
  at::ScalarType gradients = at::kFloat;
};

inline Precision precision_of(const RunConfig& config) {
  if (config.precision == "fp64") return {at::kDouble, at::kDouble};
  const at::ScalarType gradients = config.grad_accum_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  if (config.precision == "bf16") return {at::kBFloat16, gradients};
  if (config.precision == "fp16") return {at::kHalf, gradients};
  return {at::kFloat, gradients};  // fp32, tf32
}

// What gradients travel as, where that is not their own dtype.
inline std::optional<at::ScalarType> wire_dtype_of(const RunConfig& config) {
  if (config.communication_data_type == "fp32") return at::kFloat;
  if (config.communication_data_type == "bf16") return at::kBFloat16;
  if (config.communication_data_type == "fp16") return at::kHalf;
  return std::nullopt;
}

}  // namespace muster::worker
