#include "worker/models/attention.h"

#include <array>
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
#include <ATen/ops/sum.h>
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
  int64_t batch, length, heads, groups, width;  // width of one head
  int64_t shared() const { return heads / groups; }  // query heads of a group
};

Shape shape_of(const at::Tensor& qkv, int64_t batch, const kernels::Heads& heads) {
  MUSTER_CHECK(qkv.dim() == 2 && batch > 0 && heads.groups > 0);
  MUSTER_CHECK_EQ(heads.queries % heads.groups, 0);
  const int64_t all = heads.queries + 2 * heads.groups;
  MUSTER_CHECK_EQ(qkv.size(1) % all, 0);
  return {batch, qkv.size(0) / batch, heads.queries, heads.groups, qkv.size(1) / all};
}

// (B * T, (H + 2 G) D) -> (B, H, T, D), (B, G, T, D), (B, G, T, D), views.
std::array<at::Tensor, 3> split(const at::Tensor& qkv, const Shape& s) {
  const at::Tensor all = qkv.view({s.batch, s.length, s.heads + 2 * s.groups, s.width}).transpose(1, 2);
  return {all.narrow(1, 0, s.heads), all.narrow(1, s.heads, s.groups), all.narrow(1, s.heads + s.groups, s.groups)};
}

// (B, G, T, D) -> (B, H, T, D), each group for its query heads. A copy, laid out as (B, T, H, D), where groups are shared.
at::Tensor expand_groups(const at::Tensor& x, const Shape& s) {
  if (s.shared() == 1) return x;
  const at::Tensor repeated = x.transpose(1, 2).unsqueeze(3).expand({-1, -1, -1, s.shared(), -1});
  return repeated.reshape({s.batch, s.length, s.heads, s.width}).transpose(1, 2);
}

// Adds up the gradients of a group's query heads, the backward pass of expand_groups; or copies where the kernel knows groups.
void collect_groups(at::Tensor to, const at::Tensor& grad, const Shape& s) {
  if (grad.size(1) == s.groups) {
    to.copy_(grad);
  } else {
    at::sum_out(to, grad.unflatten(1, {s.groups, s.shared()}), {2});
  }
}

// The other way round, for gradients: one contiguous (B * T, (H + 2 G) D).
at::Tensor join(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Shape& s) {
  at::Tensor joined = at::empty({s.batch * s.length, (s.heads + 2 * s.groups) * s.width}, q.options());
  const auto parts = split(joined, s);
  parts[0].copy_(q);
  collect_groups(parts[1], k, s);
  collect_groups(parts[2], v, s);
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
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, int64_t batch, const kernels::Heads& heads,
                            const kernels::DropoutKey& key) {
    const Shape s = shape_of(qkv, batch, heads);
    Kernel kernel = choose(qkv.device(), qkv.scalar_type(), key.p);
    if (kernel == Kernel::kCpuFlash && kernels::short_attention_fits(qkv, s.length)) kernel = Kernel::kShort;
    ctx->saved_data["shape"] = std::vector<int64_t>{s.batch, s.length, s.heads, s.groups, s.width, static_cast<int64_t>(kernel)};
    ctx->saved_data["key"] = static_cast<int64_t>(key.key);
    ctx->saved_data["first_sample"] = key.first_sample;
    ctx->saved_data["p"] = key.p;
    if (kernel == Kernel::kShort) {
      const auto r = kernels::short_attention(qkv, batch, heads);
      ctx->save_for_backward({qkv, r.out, r.probabilities});
      return r.out;
    }
    const auto [q, k, v] = inputs(qkv, s, kernel);
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
    const Shape s{shape[0], shape[1], shape[2], shape[3], shape[4]};
    const auto kernel = static_cast<Kernel>(shape[5]);
    const auto saved = ctx->get_saved_variables();
    if (kernel == Kernel::kShort) {
      const kernels::Heads heads(s.heads, s.groups);
      return {kernels::short_attention_backward(grads[0].contiguous(), saved[0], {saved[1], saved[2]}, s.batch, heads), {}, {}, {}};
    }
    const auto [q, k, v] = inputs(saved[0], s, kernel);
    const at::Tensor grad = from_rows(grads[0].contiguous(), s);
    const double p = ctx->saved_data["p"].toDouble();
    at::Tensor dq, dk, dv;
    switch (kernel) {
      case Kernel::kShort:
        break;  // above
      case Kernel::kComposed:
        std::tie(dq, dk, dv) = composed_backward(grad, q, k, v, saved[1], s, dropout_key(ctx));
        break;
      case Kernel::kCpuFlash:
        std::tie(dq, dk, dv) =
            at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, saved[1], saved[2], 0.0, true);
        break;
      case Kernel::kFlash:
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, saved[1], saved[2], {}, {},
                                                                                s.length, s.length, p, true, saved[3], saved[4]);
        break;
      case Kernel::kEfficient:
        std::tie(dq, dk, dv, std::ignore) = at::_scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, {}, saved[1], saved[2], saved[3], saved[4], p, {true, true, true, false}, true);
        break;
    }
    return {join(dq, dk, dv, s), {}, {}, {}};
  }

  // Flash attention on a GPU reads each group for its query heads; for the others keys and values are repeated, again in the
  // backward pass rather than kept.
  static std::array<at::Tensor, 3> inputs(const at::Tensor& qkv, const Shape& s, Kernel kernel) {
    auto parts = split(qkv, s);
    if (kernel == Kernel::kFlash) return parts;
    return {parts[0], expand_groups(parts[1], s), expand_groups(parts[2], s)};
  }

  static kernels::DropoutKey dropout_key(AutogradContext* ctx) {
    return {static_cast<uint64_t>(ctx->saved_data["key"].toInt()), ctx->saved_data["first_sample"].toInt(),
            ctx->saved_data["p"].toDouble()};
  }

  static std::tuple<at::Tensor, at::Tensor, at::Tensor> composed_backward(const at::Tensor& grad, const at::Tensor& q,
                                                                          const at::Tensor& k, const at::Tensor& v,
                                                                          const at::Tensor& probabilities, const Shape& s,
                                                                          const kernels::DropoutKey& key) {
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

at::Tensor causal_attention(const at::Tensor& qkv, int64_t batch, const kernels::Heads& heads, const kernels::DropoutKey& key) {
  return CausalAttention::apply(qkv, batch, heads, key);
}

std::string_view attention_kernel(at::Device device, at::ScalarType dtype, double dropout_p) {
  static constexpr std::string_view kNames[] = {"composed", "cpu-flash", "flash", "efficient", "short"};
  return kNames[static_cast<int>(choose(device, dtype, dropout_p))];
}

}  // namespace muster::worker::ops
