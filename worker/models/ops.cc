#include "worker/models/ops.h"

#include <optional>

#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/kernels/matmul.h"

namespace muster::worker::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Tensors = torch::autograd::variable_list;

// Parameters outlive every graph, so a node keeps their address.
c10::IValue address(Parameter* p) { return reinterpret_cast<int64_t>(p); }
Parameter* parameter(AutogradContext* ctx, const char* key) { return reinterpret_cast<Parameter*>(ctx->saved_data[key].toInt()); }

// Autograd takes no undefined tensor, but an empty optional.
using Maybe = std::optional<at::Tensor>;
Maybe maybe(Parameter* p) { return p ? Maybe(p->use()) : std::nullopt; }

bool wants_gradient(const Parameter* p) { return p && !p->frozen; }

// Adds a^T b to the gradient of `weight`: one matrix product straight into the buffer where the device can.
void add_product_gradient(Parameter& weight, const at::Tensor& a, const at::Tensor& b) {
  if (auto* later = std::exchange(weight.deferred, nullptr)) {
    later->push_back([&weight, a, b] { add_product_gradient(weight, a, b); });
    weight.deferred = later;
    return;
  }
  at::Tensor& grad = weight.gradient();
  const bool same_dtype = grad.scalar_type() == a.scalar_type();
  if (!same_dtype && !a.is_cuda()) return weight.add_gradient(at::mm(a.t(), b));
  if (same_dtype) {
    kernels::matmul_tn_out(grad, a, b, weight.accumulates());
  } else if (weight.accumulates()) {  // 16-bit factors, float32 sum and result
    at::addmm_outf(grad, a.t(), b, grad.scalar_type(), 1, 1, grad);
  } else {
    at::mm_outf(a.t(), b, grad.scalar_type(), grad);
  }
  weight.report();
}

void add_bias_gradient(Parameter* bias, const at::Tensor& grad) {
  if (wants_gradient(bias)) bias->add_gradient(at::sum(grad, 0, false, bias->gradient().scalar_type()));
}

struct Embedding : Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const Maybe& positions, const at::Tensor& tokens,
                            Parameter* token_table, Parameter* position_table) {
    ctx->save_for_backward({tokens});
    ctx->saved_data["tokens"] = address(token_table);
    ctx->saved_data["positions"] = address(position_table);
    at::Tensor x = at::embedding(table, tokens);
    if (positions) x.add_(positions->narrow(0, 0, tokens.size(1)));
    return x.view({-1, table.size(1)});
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const at::Tensor tokens = ctx->get_saved_variables()[0];
    const at::Tensor grad = grads[0].view({tokens.size(0), tokens.size(1), -1});
    if (Parameter* p = parameter(ctx, "tokens"); wants_gradient(p)) {
      p->add_gradient(at::embedding_dense_backward(grad, tokens, p->shape[0], -1, false));
    }
    if (Parameter* p = parameter(ctx, "positions"); wants_gradient(p)) add_position_gradient(*p, at::sum(grad, 0));
    return {{}, {}, {}, {}, {}};
  }
  static void add_position_gradient(Parameter& p, const at::Tensor& g) {  // g (T, C), T <= rows of the table
    at::Tensor& sum = p.gradient();
    if (!p.accumulates()) sum.zero_();
    sum.narrow(0, 0, g.size(0)).add_(g);
    p.report();
  }
};

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, const Maybe& b, Parameter* weight,
                            Parameter* bias) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    const at::Tensor y = kernels::matmul_nt(x, w);
    return b ? y.add_(*b) : y;
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& grad = grads[0];
    Parameter* weight = parameter(ctx, "weight");
    const at::Tensor grad_x = ctx->needs_input_grad(0) ? kernels::matmul_nn(grad, weight->use()) : at::Tensor();
    if (wants_gradient(weight)) add_product_gradient(*weight, grad, saved[0]);
    add_bias_gradient(parameter(ctx, "bias"), grad);
    return {grad_x, {}, {}, {}, {}};
  }
};

struct Gelu {
  static at::Tensor value(const at::Tensor& x) { return kernels::gelu(x); }
  static at::Tensor gradient(const at::Tensor& grad, const at::Tensor& x) { return kernels::gelu_backward(grad, x); }
};
struct Swiglu {
  static at::Tensor value(const at::Tensor& x) { return kernels::swiglu(x); }
  static at::Tensor gradient(const at::Tensor& grad, const at::Tensor& x) { return kernels::swiglu_backward(grad, x); }
};

template <typename F>
struct Activation : Function<Activation<F>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return F::value(x);
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) { return {F::gradient(grads[0], ctx->get_saved_variables()[0])}; }
};

// linear(F(x)), which keeps x alone.
template <typename F>
struct ActivationLinear : Function<ActivationLinear<F>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, const Maybe& b, Parameter* weight,
                            Parameter* bias) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    const at::Tensor y = kernels::matmul_nt(F::value(x), w);
    return b ? y.add_(*b) : y;
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    Parameter* weight = parameter(ctx, "weight");
    if (wants_gradient(weight)) add_product_gradient(*weight, grads[0], F::value(x));
    add_bias_gradient(parameter(ctx, "bias"), grads[0]);
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}, {}, {}};
    return {F::gradient(kernels::matmul_nn(grads[0], weight->use()), x), {}, {}, {}, {}};
  }
};

struct ResidualNorm : Function<ResidualNorm> {
  static Tensors forward(AutogradContext* ctx, const at::Tensor& residual, const Maybe& branch, const at::Tensor& w,
                         const Maybe& b, Parameter* weight, Parameter* bias) {
    const auto out = kernels::residual_layer_norm(residual, branch.value_or(at::Tensor()), w, b.value_or(at::Tensor()));
    ctx->save_for_backward({out.sum, out.mean, out.rstd});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    return branch ? Tensors{out.normed, out.sum} : Tensors{out.normed};
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor past = grads.size() > 1 ? grads[1] : at::Tensor();
    Parameter* weight = parameter(ctx, "weight");
    Parameter* bias = parameter(ctx, "bias");
    for (Parameter* p : {weight, bias}) {
      if (wants_gradient(p) && !p->accumulates()) p->gradient().zero_();
    }
    const at::Tensor grad = kernels::residual_layer_norm_backward(
        grads[0], past, saved[0], saved[1], saved[2], weight->use(), wants_gradient(weight) ? weight->gradient() : at::Tensor(),
        wants_gradient(bias) ? bias->gradient() : at::Tensor());
    for (Parameter* p : {weight, bias}) {
      if (wants_gradient(p)) p->report();
    }
    return {grad, grads.size() > 1 ? grad : at::Tensor(), {}, {}, {}, {}};
  }
};

struct ResidualRmsNorm : Function<ResidualRmsNorm> {
  static Tensors forward(AutogradContext* ctx, const at::Tensor& residual, const Maybe& branch, const at::Tensor& w,
                         Parameter* weight, double eps) {
    const auto out = kernels::residual_rms_norm(residual, branch.value_or(at::Tensor()), w, eps);
    ctx->save_for_backward({out.sum, out.rstd});
    ctx->saved_data["weight"] = address(weight);
    return branch ? Tensors{out.normed, out.sum} : Tensors{out.normed};
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor past = grads.size() > 1 ? grads[1] : at::Tensor();
    Parameter* weight = parameter(ctx, "weight");
    const bool wanted = wants_gradient(weight);
    if (wanted && !weight->accumulates()) weight->gradient().zero_();
    const at::Tensor grad = kernels::residual_rms_norm_backward(grads[0], past, saved[0], saved[1], weight->use(),
                                                                wanted ? weight->gradient() : at::Tensor());
    if (wanted) weight->report();
    return {grad, grads.size() > 1 ? grad : at::Tensor(), {}, {}, {}};
  }
};

struct RotaryTurn : Function<RotaryTurn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& table, const kernels::Rotary& how) {
    ctx->saved_data["table"] = table;  // outlives the graph: the model's
    ctx->saved_data["heads"] = how.heads;
    ctx->saved_data["interleaved"] = how.interleaved;
    return kernels::rotary(x, table, how);
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const kernels::Rotary back{ctx->saved_data["heads"].toInt(), ctx->saved_data["interleaved"].toBool(), true};
    return {kernels::rotary(grads[0].contiguous(), ctx->saved_data["table"].toTensor(), back), {}, {}};
  }
};

struct Dropout : Function<Dropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const kernels::DropoutKey& key) {
    ctx->saved_data["key"] = static_cast<int64_t>(key.key);
    ctx->saved_data["first_sample"] = key.first_sample;
    ctx->saved_data["p"] = key.p;
    return kernels::dropout(x, key);
  }
  static Tensors backward(AutogradContext* ctx, Tensors grads) {
    const kernels::DropoutKey key{static_cast<uint64_t>(ctx->saved_data["key"].toInt()), ctx->saved_data["first_sample"].toInt(),
                                  ctx->saved_data["p"].toDouble()};
    return {kernels::dropout(grads[0].contiguous(), key), {}};
  }
};

struct HeadLoss : Function<HeadLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                            Parameter* weight, double gradient_scale) {
    at::Tensor logits = kernels::matmul_nt(x, w);  // (N, V)
    const at::Tensor loss = kernels::cross_entropy_in_place(logits, targets, gradient_scale);
    ctx->save_for_backward({x, logits});  // logits now hold their own gradient
    ctx->saved_data["weight"] = address(weight);
    return loss;
  }
  static Tensors backward(AutogradContext* ctx, Tensors) {
    const auto saved = ctx->get_saved_variables();
    Parameter* weight = parameter(ctx, "weight");
    const at::Tensor grad_x = kernels::matmul_nn(saved[1], weight->use());
    if (wants_gradient(weight)) add_product_gradient(*weight, saved[1], saved[0]);
    return {grad_x, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& tokens, Parameter& token_table, Parameter* position_table) {
  return Embedding::apply(token_table.use(), maybe(position_table), tokens, &token_table, position_table);
}

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias) {
  return Linear::apply(x, weight.use(), maybe(bias), &weight, bias);
}

std::tuple<at::Tensor, at::Tensor> residual_norm(const at::Tensor& residual, const at::Tensor& branch, Parameter& weight,
                                                 Parameter* bias) {
  const auto out =
      ResidualNorm::apply(residual, branch.defined() ? Maybe(branch) : std::nullopt, weight.use(), maybe(bias), &weight, bias);
  return {branch.defined() ? out[1] : residual, out[0]};
}

std::tuple<at::Tensor, at::Tensor> residual_rms_norm(const at::Tensor& residual, const at::Tensor& branch, Parameter& weight,
                                                     double eps) {
  const auto out = ResidualRmsNorm::apply(residual, branch.defined() ? Maybe(branch) : std::nullopt, weight.use(), &weight, eps);
  return {branch.defined() ? out[1] : residual, out[0]};
}

at::Tensor gelu(const at::Tensor& x) { return Activation<Gelu>::apply(x); }
at::Tensor swiglu(const at::Tensor& x) { return Activation<Swiglu>::apply(x); }

at::Tensor gelu_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, bool keep) {
  return keep ? linear(ops::gelu(x), weight, bias) : ActivationLinear<Gelu>::apply(x, weight.use(), maybe(bias), &weight, bias);
}
at::Tensor swiglu_linear(const at::Tensor& x, Parameter& weight, bool keep) {
  return keep ? linear(ops::swiglu(x), weight, nullptr)
              : ActivationLinear<Swiglu>::apply(x, weight.use(), Maybe(), &weight, static_cast<Parameter*>(nullptr));
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& table, const kernels::Rotary& how) {
  return RotaryTurn::apply(x, table, how);
}

at::Tensor dropout(const at::Tensor& x, const kernels::DropoutKey& key) { return key.p == 0 ? x : Dropout::apply(x, key); }

at::Tensor head_loss(const at::Tensor& x, Parameter& weight, const at::Tensor& targets, double gradient_scale) {
  if (!c10::GradMode::is_enabled()) return kernels::cross_entropy(kernels::matmul_nt(x, weight.use()), targets);
  return HeadLoss::apply(x, weight.use(), targets, &weight, gradient_scale);
}

}  // namespace muster::worker::ops
