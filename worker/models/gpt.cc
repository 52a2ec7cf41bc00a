#include <cmath>
#include <deque>
#include <string>

#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/kernels/philox.h"
#include "worker/models/attention.h"
#include "worker/models/model.h"
#include "worker/models/ops.h"
#include "worker/models/recompute.h"

namespace muster::worker {
namespace {

using sharding::Init;
using sharding::Parameter;

// GPT-2 (Radford et al., 2019): pre-norm blocks, GELU, learned positions; initial values as GPT-2's (standard deviation 0.02,
// projections into the residual stream divided by sqrt(2 layers)).
class Gpt : public Model {
 public:
  Gpt(const RunConfig& config, int64_t vocab_size);
  std::vector<Parameter*> parameters() override;
  sharding::UnitSchedule units() const override;
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) override;
  at::Tensor next_token_logits(const at::Tensor& tokens) override;

 private:
  enum class Recompute { kNone, kSelective, kFull };
  struct Linear {
    Parameter *weight = nullptr, *bias = nullptr;
  };
  struct Block {
    std::string name;
    Linear norm1, qkv, out, norm2, up, down;
  };

  Parameter* add(std::string name, std::vector<int64_t> shape, Init init, bool decay);
  Linear add_linear(const std::string& name, int64_t out, int64_t in, double std);
  Linear add_norm(const std::string& name);
  Block add_block(int64_t index);
  Parameter& head() { return head_ ? *head_ : *token_table_; }

  at::Tensor attend(const Block& b, const at::Tensor& qkv, int64_t batch, const PassContext& pass) const;
  ops::TensorList block(const Block& b, const ops::TensorList& in, int64_t batch, const PassContext& pass) const;
  at::Tensor body(const at::Tensor& tokens, const PassContext& pass);
  at::Tensor drop(const at::Tensor& x, int64_t batch, const std::string& module, const PassContext& pass) const;
  kernels::DropoutKey dropout_key(const std::string& module, double p, const PassContext& pass) const;

  const RunConfig config_;
  const Recompute recompute_;
  std::deque<Parameter> storage_;  // stable addresses
  int unit_ = 0;                   // of the parameters being added: 0 embeddings, 1 + i block i, the last the end
  Parameter *token_table_ = nullptr, *position_table_ = nullptr, *head_ = nullptr;
  std::vector<Block> blocks_;
  Linear final_norm_;
};

Gpt::Gpt(const RunConfig& config, int64_t vocab_size) : config_(config),
      recompute_(config.recompute_granularity == "full" ? Recompute::kFull
                 : config.recompute_granularity == "selective" ? Recompute::kSelective : Recompute::kNone) {
  const int64_t width = config.hidden_size;
  token_table_ = add("token_embedding", {vocab_size, width}, Init::normal(0.02), true);
  position_table_ = add("position_embedding", {config.seq_length, width}, Init::normal(0.02), true);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    ++unit_;
    blocks_.push_back(add_block(i));
  }
  ++unit_;
  final_norm_ = add_norm("final_norm");
  if (config.untie_embeddings_and_output_weights) {
    head_ = add("head", {vocab_size, width}, Init::normal(0.02), true);
  } else {
    token_table_->uses = 2;
  }
}

Parameter* Gpt::add(std::string name, std::vector<int64_t> shape, Init init, bool decay) {
  Parameter p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.init = init;
  p.decay = decay;
  p.unit = unit_;
  return &storage_.emplace_back(std::move(p));
}

Gpt::Linear Gpt::add_linear(const std::string& name, int64_t out, int64_t in, double std) {
  Linear linear;
  linear.weight = add(name + ".weight", {out, in}, Init::normal(std), true);
  linear.weight->hidden_matrix = true;
  if (config_.add_bias_linear) linear.bias = add(name + ".bias", {out}, Init::constant(0), false);
  return linear;
}

Gpt::Linear Gpt::add_norm(const std::string& name) {
  Linear norm;
  norm.weight = add(name + ".weight", {config_.hidden_size}, Init::constant(1), false);
  if (config_.add_bias_linear) norm.bias = add(name + ".bias", {config_.hidden_size}, Init::constant(0), false);
  return norm;
}

Gpt::Block Gpt::add_block(int64_t index) {
  const std::string name = fmt::format("block{}", index);
  const int64_t width = config_.hidden_size;
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config_.num_layers));
  Block b;
  b.name = name;
  b.norm1 = add_norm(name + ".norm1");
  b.qkv = add_linear(name + ".attention.qkv", 3 * width, width, 0.02);
  b.out = add_linear(name + ".attention.out", width, width, residual_std);
  b.norm2 = add_norm(name + ".norm2");
  b.up = add_linear(name + ".mlp.up", 4 * width, width, 0.02);
  b.down = add_linear(name + ".mlp.down", width, 4 * width, residual_std);
  return b;
}

std::vector<Parameter*> Gpt::parameters() {
  std::vector<Parameter*> all;
  for (Parameter& p : storage_) all.push_back(&p);
  return all;
}

sharding::UnitSchedule Gpt::units() const {
  sharding::UnitSchedule schedule;
  for (int unit = 0; unit <= unit_; ++unit) schedule.forward.push_back(unit);
  if (!head_) {  // the tied head is in the embeddings' unit
    schedule.forward.push_back(0);
    schedule.backward.push_back(0);
  }
  for (int unit = unit_; unit > 0; --unit) schedule.backward.push_back(unit);  // the embedding's gradient needs no value
  return schedule;
}

kernels::DropoutKey Gpt::dropout_key(const std::string& module, double p, const PassContext& pass) const {
  if (!pass.training || p == 0) return {};
  const auto seed = static_cast<uint64_t>(config_.seed) ^ (static_cast<uint64_t>(pass.step) * 0xD1342543DE82EF95ull);
  return {philox_key(seed, module.c_str()), pass.first_sample, p};
}

at::Tensor Gpt::drop(const at::Tensor& x, int64_t batch, const std::string& module, const PassContext& pass) const {
  const auto key = dropout_key(module, config_.hidden_dropout, pass);
  return key.p == 0 ? x : ops::dropout(x.view({batch, -1, x.size(1)}), key).view({-1, x.size(1)});
}

at::Tensor Gpt::attend(const Block& b, const at::Tensor& qkv, int64_t batch, const PassContext& pass) const {
  const auto key = dropout_key(b.name + ".attention", config_.attention_dropout, pass);
  const auto core = [=, heads = config_.num_attention_heads](const ops::TensorList& in) -> ops::TensorList {
    return {ops::causal_attention(in[0], batch, heads, key)};
  };
  return recompute_ == Recompute::kSelective ? ops::recompute(core, {qkv})[0] : core({qkv})[0];
}

// {residual, branch} in and out; what a block adds last is left as branch, for the next norm to add.
ops::TensorList Gpt::block(const Block& b, const ops::TensorList& in, int64_t batch, const PassContext& pass) const {
  auto [residual, normed] = ops::residual_norm(in[0], in[1], *b.norm1.weight, b.norm1.bias);
  const at::Tensor qkv = ops::linear(normed, *b.qkv.weight, b.qkv.bias);  // (B T, 3 C)
  at::Tensor branch = ops::linear(attend(b, qkv, batch, pass), *b.out.weight, b.out.bias);
  branch = drop(branch, batch, b.name + ".attention.out", pass);
  std::tie(residual, normed) = ops::residual_norm(residual, branch, *b.norm2.weight, b.norm2.bias);
  const at::Tensor up = ops::linear(normed, *b.up.weight, b.up.bias);
  branch = ops::gelu_linear(up, *b.down.weight, b.down.bias, recompute_ == Recompute::kNone);
  return {residual, drop(branch, batch, b.name + ".mlp", pass)};
}

at::Tensor Gpt::body(const at::Tensor& tokens, const PassContext& pass) {
  const int64_t batch = tokens.size(0);
  ops::TensorList x = {drop(ops::embedding(tokens, *token_table_, *position_table_), batch, "embedding", pass), {}};  // (B T, C)
  for (const Block& b : blocks_) {
    if (recompute_ != Recompute::kFull) {
      x = block(b, x, batch, pass);
      continue;
    }
    // One tensor is kept a block, so the sum is made here.
    const auto whole = [this, &b, batch, pass](const ops::TensorList& in) -> ops::TensorList {
      const auto out = block(b, in, batch, pass);
      return {out[0].add(out[1])};
    };
    x = {ops::recompute(whole, {x[0], {}})[0], {}};
  }
  return std::get<1>(ops::residual_norm(x[0], x[1], *final_norm_.weight, final_norm_.bias));
}

at::Tensor Gpt::loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) {
  return ops::head_loss(body(tokens, pass), head(), targets.view({-1}), pass.gradient_scale);
}

at::Tensor Gpt::next_token_logits(const at::Tensor& tokens) {
  const c10::AutoGradMode no_graph(false);
  const at::Tensor x = body(tokens, {}).view({tokens.size(0), tokens.size(1), -1}).select(1, -1);
  return at::mm(x, head().use().t());
}

}  // namespace

std::unique_ptr<Model> make_model(const RunConfig& config, int64_t vocab_size) {
  if (config.model != "gpt") refuse("model: found '{}', wanted gpt", config.model);
  return std::make_unique<Gpt>(config, vocab_size);
}

}  // namespace muster::worker
