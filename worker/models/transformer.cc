#include "worker/models/transformer.h"

#include <cmath>

#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/kernels/philox.h"
#include "worker/models/attention.h"
#include "worker/models/ops.h"

namespace muster::worker {

using sharding::Init;
using sharding::Parameter;

namespace {

constexpr double kStd = 0.02;

}  // namespace

Transformer::Transformer(const RunConfig& config)
    : config_(config),
      recompute_(config.recompute_granularity == "full"        ? Recompute::kFull
                 : config.recompute_granularity == "selective" ? Recompute::kSelective
                                                               : Recompute::kNone) {}

Parameter* Transformer::add(std::string name, std::vector<int64_t> shape, Init init, bool decay) {
  Parameter p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.init = init;
  p.decay = decay;
  p.unit = unit_;
  return &storage_.emplace_back(std::move(p));
}

Parameter* Transformer::add_embedding(const std::string& name, int64_t rows) {
  return add(name, {rows, config_.hidden_size}, Init::normal(kStd), true);
}

Transformer::Linear Transformer::add_linear(const std::string& name, int64_t out, int64_t in, double std) {
  Linear linear;
  linear.weight = add(name + ".weight", {out, in}, Init::normal(std), true);
  linear.weight->hidden_matrix = true;
  if (config_.add_bias_linear) linear.bias = add(name + ".bias", {out}, Init::constant(0), false);
  return linear;
}

Transformer::Linear Transformer::add_norm(const std::string& name) {
  Linear norm;
  norm.weight = add(name + ".weight", {config_.hidden_size}, Init::constant(1), false);
  if (config_.add_bias_linear) norm.bias = add(name + ".bias", {config_.hidden_size}, Init::constant(0), false);
  return norm;
}

Transformer::Block Transformer::add_block(int64_t index, const std::string& up, int64_t up_rows) {
  const std::string name = fmt::format("block{}", index);
  const int64_t width = config_.hidden_size, head = width / config_.num_attention_heads;
  const double residual_std = kStd / std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  Block b;
  b.name = name;
  b.norm1 = add_norm(name + ".norm1");
  b.qkv = add_linear(name + ".attention.qkv", width + 2 * query_groups(config_) * head, width, kStd);
  b.out = add_linear(name + ".attention.out", width, width, residual_std);
  b.norm2 = add_norm(name + ".norm2");
  b.up = add_linear(name + "." + up, up_rows, width, kStd);
  b.down = add_linear(name + ".mlp.down", width, ffn_width(config_), residual_std);
  return b;
}

void Transformer::add_blocks(const std::string& up, int64_t up_rows) {
  for (int64_t i = 0; i < config_.num_layers; ++i) {
    ++unit_;
    blocks_.push_back(add_block(i, up, up_rows));
  }
}

void Transformer::add_end(Parameter* token_table) {
  ++unit_;
  final_norm_ = add_norm("final_norm");
  if (config_.untie_embeddings_and_output_weights) {
    head_ = add_embedding("head", token_table->shape[0]);
  } else {
    head_ = token_table;
    head_->uses = 2;
  }
}

std::vector<Parameter*> Transformer::parameters() {
  std::vector<Parameter*> all;
  for (Parameter& p : storage_) all.push_back(&p);
  return all;
}

sharding::UnitSchedule Transformer::units() const {
  sharding::UnitSchedule schedule;
  for (int unit = 0; unit <= unit_; ++unit) schedule.forward.push_back(unit);
  if (head_->unit == 0) {  // the tied head is in the embeddings' unit
    schedule.forward.push_back(0);
    schedule.backward.push_back(0);
  }
  for (int unit = unit_; unit > 0; --unit) schedule.backward.push_back(unit);  // the embedding's gradient needs no value
  return schedule;
}

kernels::DropoutKey Transformer::dropout_key(const std::string& module, double p, const PassContext& pass) const {
  if (!pass.training || p == 0) return {};
  const auto seed = static_cast<uint64_t>(config_.seed) ^ (static_cast<uint64_t>(pass.step) * 0xD1342543DE82EF95ull);
  return {philox_key(seed, module.c_str()), pass.first_sample, p};
}

at::Tensor Transformer::drop(const at::Tensor& x, int64_t batch, const std::string& module, const PassContext& pass) const {
  const auto key = dropout_key(module, config_.hidden_dropout, pass);
  return key.p == 0 ? x : ops::dropout(x.view({batch, -1, x.size(1)}), key).view({-1, x.size(1)});
}

at::Tensor Transformer::attend(const Block& b, const at::Tensor& qkv, int64_t batch, const PassContext& pass) const {
  const auto key = dropout_key(b.name + ".attention", config_.attention_dropout, pass);
  const kernels::Heads heads(config_.num_attention_heads, query_groups(config_));
  const auto core = [=](const ops::TensorList& in) -> ops::TensorList {
    return {ops::causal_attention(in[0], batch, heads, key)};
  };
  return recompute_ == Recompute::kSelective ? ops::recompute(core, {qkv})[0] : core({qkv})[0];
}

// {residual, branch} in and out; what a block adds last is left as branch, for the next norm to add.
ops::TensorList Transformer::run(const Block& b, const ops::TensorList& in, int64_t batch, const PassContext& pass) const {
  auto [residual, normed] = norm(in[0], in[1], b.norm1);
  const at::Tensor qkv = place(ops::linear(normed, *b.qkv.weight, b.qkv.bias), normed.size(0) / batch);  // (B T, C + 2 G D)
  at::Tensor branch = ops::linear(attend(b, qkv, batch, pass), *b.out.weight, b.out.bias);
  branch = drop(branch, batch, b.name + ".attention.out", pass);
  std::tie(residual, normed) = norm(residual, branch, b.norm2);
  branch = mlp(ops::linear(normed, *b.up.weight, b.up.bias), b.down);
  return {residual, drop(branch, batch, b.name + ".mlp", pass)};
}

at::Tensor Transformer::body(const at::Tensor& tokens, const PassContext& pass) {
  const int64_t batch = tokens.size(0);
  ops::TensorList x = {drop(embed(tokens), batch, "embedding", pass), {}};  // (B T, C)
  for (const Block& b : blocks_) {
    if (recompute_ != Recompute::kFull) {
      x = run(b, x, batch, pass);
      continue;
    }
    // One tensor is kept a block, so the sum is made here.
    const auto whole = [this, &b, batch, pass](const ops::TensorList& in) -> ops::TensorList {
      const auto out = run(b, in, batch, pass);
      return {out[0].add(out[1])};
    };
    x = {ops::recompute(whole, {x[0], {}})[0], {}};
  }
  return std::get<1>(norm(x[0], x[1], final_norm_));
}

at::Tensor Transformer::loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) {
  return ops::head_loss(body(tokens, pass), *head_, targets.view({-1}), pass.gradient_scale);
}

at::Tensor Transformer::next_token_logits(const at::Tensor& tokens) {
  const c10::AutoGradMode no_graph(false);
  const at::Tensor x = body(tokens, {}).view({tokens.size(0), tokens.size(1), -1}).select(1, -1);
  return at::mm(x, head_->use().t());
}

std::unique_ptr<Model> make_model(const RunConfig& config, int64_t vocab_size) {
  if (config.model == "gpt") return make_gpt(config, vocab_size);
  if (config.model == "llama") return make_llama(config, vocab_size);
  refuse("model: found '{}', wanted gpt or llama", config.model);
}

}  // namespace muster::worker
