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
struct Heads {
  Heads(int64_t all) : queries(all), groups(all) {}  // as many of keys and values as of queries
  Heads(int64_t of_queries, int64_t of_groups) : queries(of_queries), groups(of_groups) {}
  int64_t queries;
  int64_t groups;  // heads of keys and of values; divides queries: query head h reads group h / (queries / groups)
};
// qkv (B * T, (queries + 2 groups) D) contiguous, D the width of a head; C = queries D. Scores are scaled by 1 / sqrt(D).
// Threads: at::parallel_for over batch and groups.
ShortAttention short_attention(const at::Tensor& qkv, int64_t batch, const Heads& heads);
// grad (B * T, C) of out; returns the gradient of qkv.
at::Tensor short_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const ShortAttention& forward, int64_t batch,
                                    const Heads& heads);

}  // namespace muster::worker::kernels
