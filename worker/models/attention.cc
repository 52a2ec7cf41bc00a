#include "worker/models/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include "comm/base/error.h"
#include "worker/kernels/attention.h"

namespace muster::worker::ops {
namespace {

using torch::autograd::AutogradContext;
using Tensors = torch::autograd::variable_list;

enum class Kernel { kComposed, kCpuFlash, kFlash, kEfficient, kShort };

Kernel choose(at::Device device, at::ScalarType dtype, double dropout_p) {
  if (device.is_cpu()) return dropout_p > 0 ? Kernel::kComposed : Kernel::kCpuFlash;
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return Kernel::kFlash;
  return dtype == at::kFloat ? Kernel::kEfficient : Kernel::kComposed;
}

struct Shape {
  int64_t batch, length, heads, width;  // width of one head
};

// (B * T, 3 C) -> three (B, H, T, D) views.
std::array<at::Tensor, 3> split(const at::Tensor& qkv, const Shape& s) {
  const at::Tensor all = qkv.view({s.batch, s.length, 3, s.heads, s.width});
  return {all.select(2, 0).transpose(1, 2), all.select(2, 1).transpose(1, 2), all.select(2, 2).transpose(1, 2)};
}

// The other way round, for gradients: one contiguous (B * T, 3 C).
at::Tensor join(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Shape& s) {
  at::Tensor joined = at::empty({s.batch * s.length, 3 * s.heads * s.width}, q.options());
  const auto parts = split(joined, s);
  parts[0].copy_(q);
  parts[1].copy_(k);
  parts[2].copy_(v);
  return joined;
}

at::Tensor to_rows(const at::Tensor& out, const Shape& s) {  // (B, H, T, D) -> (B * T, C)
  return out.transpose(1, 2).reshape({s.batch * s.length, s.heads * s.width});
}

at::Tensor from_rows(const at::Tensor& rows, const Shape& s) {
  return rows.view({s.batch, s.length, s.heads, s.width}).transpose(1, 2);
}

at::Tensor causal_probabilities(const at::Tensor& q, const at::Tensor& k, const Shape& s) {  // (B, H, T, T)
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul_(1.0 / std::sqrt(static_cast<double>(s.width)));
  const at::Tensor future = at::ones({s.length, s.length}, scores.options().dtype(at::kBool)).triu_(1);
  scores.masked_fill_(future, -std::numeric_limits<double>::infinity());
  return at::_softmax(scores, 3, false);
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, int64_t batch, int64_t heads, const kernels::DropoutKey& key) {
    const Shape s{batch, qkv.size(0) / batch, heads, qkv.size(1) / (3 * heads)};
    const auto [q, k, v] = split(qkv, s);
    Kernel kernel = choose(qkv.device(), qkv.scalar_type(), key.p);
    if (kernel == Kernel::kCpuFlash && kernels::short_attention_fits(qkv, s.length)) kernel = Kernel::kShort;
    ctx->saved_data["shape"] = std::vector<int64_t>{s.batch, s.length, s.heads, s.width, static_cast<int64_t>(kernel)};
    ctx->saved_data["key"] = static_cast<int64_t>(key.key);
    ctx->saved_data["first_sample"] = key.first_sample;
    ctx->saved_data["p"] = key.p;
    if (kernel == Kernel::kShort) {
      const auto r = kernels::short_attention(qkv, batch, heads);
      ctx->save_for_backward({qkv, r.out, r.probabilities});
      return r.out;
    }
    if (kernel == Kernel::kComposed) {
      const at::Tensor probabilities = causal_probabilities(q, k, s);
      const at::Tensor kept = key.p > 0 ? kernels::dropout(probabilities, key) : probabilities;
      ctx->save_for_backward({qkv, probabilities});
      return to_rows(at::matmul(kept, v), s);
    }
    if (kernel == Kernel::kCpuFlash) {
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
      ctx->save_for_backward({qkv, out, lse});
      return to_rows(out, s);
    }
    if (kernel == Kernel::kFlash) {
      auto r = at::_scaled_dot_product_flash_attention(q, k, v, key.p, true);
      ctx->save_for_backward({qkv, std::get<0>(r), std::get<1>(r), std::get<6>(r), std::get<7>(r)});
      return to_rows(std::get<0>(r), s);
    }
    auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, true, key.p, true);
    ctx->save_for_backward({qkv, out, lse, seed, offset});
    return to_rows(out, s);
  }

  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const auto shape = ctx->saved_data["shape"].toIntVector();
    const Shape s{shape[0], shape[1], shape[2], shape[3]};
    const auto saved = ctx->get_saved_variables();
    const auto [q, k, v] = split(saved[0], s);
    const at::Tensor grad = from_rows(grads[0].contiguous(), s);
    const double p = ctx->saved_data["p"].toDouble();
    at::Tensor dq, dk, dv;
    switch (static_cast<Kernel>(shape[4])) {
      case Kernel::kShort:
        return {kernels::short_attention_backward(grads[0].contiguous(), saved[0], {saved[1], saved[2]}, s.batch, s.heads), {}, {}, {}};
      case Kernel::kComposed:
        std::tie(dq, dk, dv) = composed_backward(grad, q, k, v, saved[1], s, dropout_key(ctx));
        break;
      case Kernel::kCpuFlash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, saved[1], saved[2], 0.0, true);
        break;
      case Kernel::kFlash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, saved[1], saved[2], {}, {}, s.length,
                                                                               s.length, p, true, saved[3], saved[4]);
        break;
      case Kernel::kEfficient:
        std::tie(dq, dk, dv, std::ignore) = at::_scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, {}, saved[1], saved[2], saved[3], saved[4], p, {true, true, true, false}, true);
        break;
    }
    return {join(dq, dk, dv, s), {}, {}, {}};
  }

  static kernels::DropoutKey dropout_key(AutogradContext* ctx) {
    return {static_cast<uint64_t>(ctx->saved_data["key"].toInt()), ctx->saved_data["first_sample"].toInt(), ctx->saved_data["p"].toDouble()};
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> composed_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                                                          const at::Tensor& v, const at::Tensor& probabilities,
                                                                          const Shape& s, const kernels::DropoutKey& key) {
    const bool drops = key.p > 0;
    const at::Tensor kept = drops ? kernels::dropout(probabilities, key) : probabilities;
    at::Tensor d_probabilities = at::matmul(grad, v.transpose(2, 3));
    if (drops) d_probabilities = kernels::dropout(d_probabilities.contiguous(), key);
    const at::Tensor d_scores = at::_softmax_backward_data(d_probabilities, probabilities, 3, probabilities.scalar_type())
                                    .mul_(1.0 / std::sqrt(static_cast<double>(s.width)));
    return {at::matmul(d_scores, k), at::matmul(d_scores.transpose(2, 3), q), at::matmul(kept.transpose(2, 3), grad)};
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& qkv, int64_t batch, int64_t heads, const kernels::DropoutKey& key) {
  return CausalAttention::apply(qkv, batch, heads, key);
}

std::string_view attention_kernel(at::Device device, at::ScalarType dtype, double dropout_p) {
  static constexpr std::string_view kNames[] = {"composed", "cpu-flash", "flash", "efficient", "short"};
  return kNames[static_cast<int>(choose(device, dtype, dropout_p))];
}

}  // namespace muster::worker::ops
