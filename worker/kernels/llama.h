#pragma once
// The fused operations of a Llama block, each for CPU and CUDA tensors; contract as kernels.h.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace muster::worker::kernels {

// ---- residual + RMS norm (Zhang & Sennrich, "Root mean square layer normalization", 2019) ------------------------------
// sum = residual + x; normed = sum / sqrt(mean(sum^2) + eps) * weight. x may be undefined: then sum is residual itself.
// All (N, C). rstd (N) float32 (float64 for float64).
struct RmsNormOut {
  at::Tensor sum, normed, rstd;
};
RmsNormOut residual_rms_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, double eps);
// As residual_layer_norm_backward: returns the gradient of sum; adds d weight into grad_weight (may be undefined; any dtype).
at::Tensor residual_rms_norm_backward(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                      const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight);

// ---- SwiGLU (Shazeer, "GLU variants improve transformer", 2020) --------------------------------------------------------
// x (N, 2 F) = [gate | up]: silu(gate) * up, (N, F). float32 math inside for 16-bit types.
at::Tensor swiglu(const at::Tensor& x);
// grad (N, F); returns the gradient of x, (N, 2 F).
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x);

// ---- rotary embedding (Su et al., "RoFormer", 2021) --------------------------------------------------------------------
// Pair i of a head at position t turns by the angle t / base^(2 i / head width). A pair is elements (2 i, 2 i + 1) when
// interleaved (the paper, llama2.c), else (i, i + head width / 2) (Hugging Face).
struct Rotary {
  int64_t heads = 0;         // that turn: of queries and keys
  bool interleaved = false;
  bool back = false;         // by the opposite angle: the backward pass
};
// Of every angle, computed in float64: (length, head width) = [cosine of each pair | sine of each pair], float64 or float32.
at::Tensor rotary_table(int64_t length, int64_t head_width, double base, at::TensorOptions options);
// x (N, C), row n at position n % T, T rows in the table (float32; float64 for float64 x; on x's device). The first `heads`
// heads of each row turn, the rest is copied. A new tensor.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& table, const Rotary& how);

}  // namespace muster::worker::kernels
