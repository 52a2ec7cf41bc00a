#pragma once
// The operations that models are made of: autograd nodes over ATen and worker/kernels. Each writes its weight gradients
// straight into the flat gradient buffer (sharding/data_parallel/parameter.h).
//
// Activations are (N, C) with N = batch * sequence rows. Any float dtype; CPU or CUDA. Threads: the training thread.

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/parameter.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/llama.h"

namespace muster::worker::ops {

using sharding::Parameter;

// tokens (B, T) int64; returns token_table[tokens] + position_table[0..T): (B * T, C). position_table may be null.
at::Tensor embedding(const at::Tensor& tokens, Parameter& token_table, Parameter* position_table);

// x (N, in), weight (out, in), bias (out) or null: x weight^T + bias, (N, out).
at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias);

// Layer norm of residual + branch. Returns {residual + branch, normed}. branch may be undefined: the sum is residual itself.
std::tuple<at::Tensor, at::Tensor> residual_norm(const at::Tensor& residual, const at::Tensor& branch, Parameter& weight,
                                                 Parameter* bias);

// RMS norm of residual + branch; else as residual_norm.
std::tuple<at::Tensor, at::Tensor> residual_rms_norm(const at::Tensor& residual, const at::Tensor& branch, Parameter& weight,
                                                     double eps);

at::Tensor gelu(const at::Tensor& x);

// linear(gelu(x), weight, bias). keep: gelu(x) is kept for the backward pass, else computed there again.
at::Tensor gelu_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, bool keep);

// See kernels::swiglu: x (N, 2 F) = [gate | up], (N, F).
at::Tensor swiglu(const at::Tensor& x);

// linear(swiglu(x), weight); keep as in gelu_linear.
at::Tensor swiglu_linear(const at::Tensor& x, Parameter& weight, bool keep);

// See kernels::rotary. table has as many rows as a sequence has tokens.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& table, const kernels::Rotary& how);

// See kernels::dropout; p = 0 returns x itself.
at::Tensor dropout(const at::Tensor& x, const kernels::DropoutKey& key);

// Sum of the cross-entropy over counted rows (targets >= 0) of x weight^T: one element. The gradient is computed on the way,
// times gradient_scale, so this must be the root of the backward pass. x (N, C), weight (V, C), targets (N) int64.
at::Tensor head_loss(const at::Tensor& x, Parameter& weight, const at::Tensor& targets, double gradient_scale);

}  // namespace muster::worker::ops
