#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "worker/kernels/kernels.h"

namespace muster::worker::ops {

// Causal self-attention. qkv (B * T, 3 C): queries, keys, values side by side, C = heads * head width. Returns (B * T, C).
// Scores are scaled by 1 / sqrt(head width).
//
// The kernel is chosen from device, dtype and dropout, never silently the slow one: see attention_kernel.
// Dropout of the probabilities: on the CPU by kernels::dropout, a function of (key, global sample, head, row, column). The fused
// GPU kernels draw their own randoms from the CUDA generator instead.
at::Tensor causal_attention(const at::Tensor& qkv, int64_t batch, int64_t heads, const kernels::DropoutKey& key);

// "composed" (matrix products and softmax), "cpu-flash" (or kernels/attention.h for short sequences), "flash", "efficient": what
// causal_attention uses for such a tensor.
std::string_view attention_kernel(at::Device device, at::ScalarType dtype, double dropout_p);

}  // namespace muster::worker::ops
