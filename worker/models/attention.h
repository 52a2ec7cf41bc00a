#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "worker/kernels/attention.h"
#include "worker/kernels/kernels.h"

namespace muster::worker::ops {

// Causal self-attention. qkv (B * T, (H + 2 G) D): H heads of queries, G of keys, G of values side by side, each D wide; G
// divides H, and query head h reads group h / (H / G) (grouped-query attention, Ainslie et al., 2023). Returns (B * T, H D).
// Scores are scaled by 1 / sqrt(D).
//
// The kernel is chosen from device, dtype and dropout, never silently the slow one: see attention_kernel.
// Dropout of the probabilities: on the CPU by kernels::dropout, a function of (key, global sample, head, row, column). The fused
// GPU kernels draw their own randoms from the CUDA generator instead.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t batch, const kernels::Heads& heads, const kernels::DropoutKey& key);

// "composed" (matrix products and softmax), "cpu-flash" (or kernels/attention.h for short sequences), "flash", "efficient": what
// causal_attention uses for such a tensor.
std::string_view attention_kernel(at::Device device, at::ScalarType dtype, double dropout_p);

}  // namespace muster::worker::ops
