#pragma once
// The CUDA half of llama.h; cuda_register.cc puts it into the table.

#include "worker/kernels/llama.h"

namespace muster::worker::kernels {

// At most 16384 columns, a multiple of 4.
RmsNormOut residual_rms_norm_cuda(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor residual_rms_norm_backward_cuda(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                           const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight);
at::Tensor swiglu_cuda(const at::Tensor& x);
at::Tensor swiglu_backward_cuda(const at::Tensor& grad, const at::Tensor& x);
at::Tensor rotary_cuda(const at::Tensor& x, const at::Tensor& table, const Rotary& how);

}  // namespace muster::worker::kernels
