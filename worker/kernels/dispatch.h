#pragma once
// One table of functions a device. kernels.h checks arguments and calls through it.

#include <ATen/core/Tensor.h>

#include "worker/kernels/kernels.h"

namespace muster::worker::kernels {

// Arguments are checked and contiguous when these are called.
struct KernelTable {
  at::Tensor (*dropout)(const at::Tensor&, const DropoutKey&) = nullptr;
  void (*adamw)(at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, const at::Tensor&, const AdamWStep&) = nullptr;
  at::Tensor (*sum_of_squares)(const at::Tensor&) = nullptr;
  // gradient_scale: overwrite logits with the gradient times this; 0: leave them
  at::Tensor (*cross_entropy)(at::Tensor, const at::Tensor&, double gradient_scale) = nullptr;
  at::Tensor (*gelu)(const at::Tensor&) = nullptr;
  at::Tensor (*gelu_backward)(const at::Tensor&, const at::Tensor&) = nullptr;
  LayerNormOut (*residual_layer_norm)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) = nullptr;
  at::Tensor (*residual_layer_norm_backward)(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                             const at::Tensor&, at::Tensor, at::Tensor) = nullptr;
};

KernelTable& cuda_table();       // empty until register_cuda_kernels()
const KernelTable& cpu_table();

}  // namespace muster::worker::kernels
