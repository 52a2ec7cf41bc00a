#pragma once
// As dispatch.h, for llama.h.

#include "worker/kernels/llama.h"

namespace muster::worker::kernels {

// Arguments are checked and contiguous when these are called.
struct LlamaTable {
  RmsNormOut (*residual_rms_norm)(const at::Tensor&, const at::Tensor&, const at::Tensor&, double eps) = nullptr;
  at::Tensor (*residual_rms_norm_backward)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                           const at::Tensor&, at::Tensor) = nullptr;
  at::Tensor (*swiglu)(const at::Tensor&) = nullptr;
  at::Tensor (*swiglu_backward)(const at::Tensor&, const at::Tensor&) = nullptr;
  at::Tensor (*rotary)(const at::Tensor&, const at::Tensor&, const Rotary&) = nullptr;
};

LlamaTable& cuda_llama_table();  // empty until register_cuda_kernels()
const LlamaTable& cpu_llama_table();

}  // namespace muster::worker::kernels
