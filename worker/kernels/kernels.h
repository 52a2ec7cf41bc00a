#pragma once
// Fused operations where ATen has none, each for CPU and CUDA tensors. Every tensor is contiguous; a wrong dtype, shape or
// device is a CheckError. CUDA: on the current stream, no host synchronisation, no allocation unless said.
//
// CPU code is in cpu_*.cc; CUDA in cuda_*.cu, reached through a table (dispatch.h) that a CUDA build fills at start, so that
// a CPU build links none of it.

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace muster::worker::kernels {

// ---- dropout -------------------------------------------------------------------------------------------------------
// The mask is a function of (key, sample, element), where key hashes (seed, step, module name): element e of global sample s (all
// dimensions after the first in one row) is kept when philox(key, s, e / 4).v[e % 4] >= p * 2^32. Kept values: times 1 / (1 - p).
struct DropoutKey {
  uint64_t key = 0;          // philox_key(seed, module name) mixed with the step
  int64_t first_sample = 0;  // global number of row 0 of the tensor's first dimension
  double p = 0;
};
// x (B, ...) any float dtype; returns a new tensor of the same dtype. Applying it to a gradient is its own backward.
at::Tensor dropout(const at::Tensor& x, const DropoutKey& key);

// ---- optimizer -----------------------------------------------------------------------------------------------------
struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;  // 1-based
};
// In place on flat buffers of equal length: master, m, v in master's dtype (float32 or float64); grad any float dtype;
// model (may be undefined) receives master rounded to its own dtype. decay_elements: elements [0, decay_elements) have
// weight decay (decoupled, Loshchilov & Hutter 2019), the rest have none. grad_scale: a one-element float32 (float64 for
// float64 master) tensor on the same device; the gradient is multiplied by it (clip coefficient / token count); where
// it is not finite nothing changes, so that a step can be skipped without a host synchronisation.
void adamw(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor v, at::Tensor model, int64_t decay_elements,
           const at::Tensor& grad_scale, const AdamWStep& step);

// Sum of squares of x (any float dtype), summed in float64 in a fixed order: one-element float64 tensor on x's device.
// Bit-equal on repetition.
at::Tensor sum_of_squares(const at::Tensor& x);

// ---- loss ----------------------------------------------------------------------------------------------------------
// logits (N, V), targets (N) int64; targets < 0 do not count. Returns the sum of -log softmax(logits)[target] over counted
// rows (one element, float32, float64 for float64 logits) and overwrites logits with gradient_scale * d(sum)/d(logits),
// scaled before it is rounded.
at::Tensor cross_entropy_in_place(at::Tensor logits, const at::Tensor& targets, double gradient_scale = 1);
// Without the gradient; logits unchanged.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

// ---- elementwise ---------------------------------------------------------------------------------------------------
// tanh or erf GELU (erf: nanoGPT's nn.GELU()). Exact forms; float32 math inside for 16-bit types.
at::Tensor gelu(const at::Tensor& x);
at::Tensor gelu_backward(const at::Tensor& grad_out, const at::Tensor& x);

// ---- residual + layer norm -----------------------------------------------------------------------------------------
// sum = residual + x; normed = layer_norm(sum) * weight (+ bias, may be undefined). x may be undefined (plain layer norm;
// then sum is residual itself). All (N, C). mean, rstd (N) float32 (float64 for float64). eps 1e-5.
struct LayerNormOut {
  at::Tensor sum, normed, mean, rstd;
};
LayerNormOut residual_layer_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// grad_normed (N, C), grad_sum_in (N, C; may be undefined: gradient that reaches sum past the norm). Returns the gradient of
// sum; adds d weight and d bias into grad_weight and grad_bias (may be undefined), any float dtype.
at::Tensor residual_layer_norm_backward(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                        const at::Tensor& mean, const at::Tensor& rstd, const at::Tensor& weight,
                                        at::Tensor grad_weight, at::Tensor grad_bias);

}  // namespace muster::worker::kernels
