#pragma once

#include <ATen/core/Tensor.h>

namespace muster::worker::kernels {

// Causal self-attention on the CPU for short sequences: float32, where sgemm_is_better() and length <= 512. The probabilities
// (B, H, T, T) are kept for the backward pass; beyond that length ATen's flash attention keeps less.
bool short_attention_fits(const at::Tensor& qkv, int64_t length);

struct ShortAttention {
  at::Tensor out;            // (B * T, C)
  at::Tensor probabilities;  // (B, H, T, T), zero above the diagonal
};
// qkv (B * T, 3 C) contiguous. Scores are scaled by 1 / sqrt(C / heads). Threads: at::parallel_for over batch and heads.
ShortAttention short_attention(const at::Tensor& qkv, int64_t batch, int64_t heads);
// grad (B * T, C) of out; returns the gradient of qkv.
at::Tensor short_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const ShortAttention& forward, int64_t batch, int64_t heads);

}  // namespace muster::worker::kernels
