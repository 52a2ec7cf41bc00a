#pragma once
// The CUDA half of kernels.h, one declaration a .cu function; cuda_register.cc puts them into the table.

#include "worker/kernels/kernels.h"

namespace muster::worker::kernels {

at::Tensor dropout_cuda(const at::Tensor& x, const DropoutKey& key);
void adamw_cuda(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor v, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                const AdamWStep& step);
at::Tensor sum_of_squares_cuda(const at::Tensor& x);
at::Tensor cross_entropy_cuda(at::Tensor logits, const at::Tensor& targets, double gradient_scale);
at::Tensor gelu_cuda(const at::Tensor& x);
at::Tensor gelu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x);
LayerNormOut residual_layer_norm_cuda(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor residual_layer_norm_backward_cuda(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum, const at::Tensor& mean,
                                             const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight, at::Tensor grad_bias);

}  // namespace muster::worker::kernels
