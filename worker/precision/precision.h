#pragma once

#include <ATen/core/Tensor.h>

#include "worker/config/run_config.h"

namespace muster::worker {

// The dtypes that config.precision stands for. Gradients are accumulated and reduced in float32 (float64 for fp64).
struct Precision {
  at::ScalarType parameters = at::kFloat;
  at::ScalarType gradients = at::kFloat;
};

inline Precision precision_of(const RunConfig& config) {
  if (config.precision == "fp64") return {at::kDouble, at::kDouble};
  if (config.precision == "bf16") return {at::kBFloat16, at::kFloat};
  return {};  // fp32, tf32
}

}  // namespace muster::worker
