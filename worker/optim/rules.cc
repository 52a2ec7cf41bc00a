#include "worker/optim/rules.h"

#include <optional>

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "comm/base/error.h"
#include "worker/kernels/kernels.h"
#include "worker/optim/eight_bit.h"

namespace muster::worker {
namespace {

// Where the step's scale is finite.
void replace(const at::Tensor& old_value, const at::Tensor& new_value, const at::Tensor& finite) {
  old_value.copy_(at::where(finite, new_value, old_value));
}

// Loshchilov and Hutter, 2019.
class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const RunConfig& c) : beta1_(c.adam_beta1), beta2_(c.adam_beta2), eps_(c.adam_eps), weight_decay_(c.weight_decay) {}
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override {
    for (int moment = 0; moment < 2; ++moment) state.add(at::zeros({size}, options));
  }
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    kernels::adamw(s.master, s.grad, s.state[0], s.state[1], s.model, s.decay, step.grad_scale,
                   {step.lr, beta1_, beta2_, eps_, weight_decay_, step.number});
  }

 private:
  const double beta1_, beta2_, eps_, weight_decay_;
};

// AdamW whose moments are kept in 8 bits. State: codes and scales of each moment.
class AdamW8BitRule : public UpdateRule {
 public:
  explicit AdamW8BitRule(const RunConfig& c) : adamw_(c) {}
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override {
    for (const bool is_signed : {true, false}) {
      const EightBit& coder = coder_for(is_signed, options);
      at::Tensor codes = at::zeros({size}, options.dtype(at::kByte)), scales = at::zeros({blocks(size)}, options);
      coder.encode(at::zeros({size}, options), codes, scales);
      state.add(codes);
      state.add(scales);
    }
  }
  at::Tensor state_part(const at::Tensor& state, int64_t begin, int64_t size) const override {
    MUSTER_CHECK_EQ(begin % EightBit::kBlock, 0);  // frozen parameters may cut a bucket elsewhere: not with 8-bit states
    return state.scalar_type() == at::kByte ? state.narrow(0, begin, size) : state.narrow(0, begin / EightBit::kBlock, blocks(size));
  }
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    const at::TensorOptions options = s.master.options();
    UpdateSlice plain = s;
    plain.state = {coder_for(true, options).decode(s.state[0], s.state[1]).contiguous(), coder_for(false, options).decode(s.state[2], s.state[3]).contiguous()};
    adamw_.apply(plain, step);
    coder_for(true, options).encode(plain.state[0], s.state[0], s.state[1]);
    coder_for(false, options).encode(plain.state[1], s.state[2], s.state[3]);
  }

 private:
  static int64_t blocks(int64_t size) { return (size + EightBit::kBlock - 1) / EightBit::kBlock; }
  const EightBit& coder_for(bool is_signed, const at::TensorOptions& options) const {
    auto& coder = is_signed ? signed_ : unsigned_;
    if (!coder) coder.emplace(is_signed, options);
    return *coder;
  }
  const AdamWRule adamw_;
  mutable std::optional<EightBit> signed_, unsigned_;  // made on the first state's device
};

// As torch.optim.SGD with momentum: the decay is part of the gradient.
class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(const RunConfig& c) : momentum_(c.sgd_momentum), weight_decay_(c.weight_decay) {}
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override { state.add(at::zeros({size}, options)); }
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    const at::Tensor finite = step.grad_scale.isfinite(), g = s.grad.to(s.master.scalar_type()).mul(step.grad_scale);
    g.narrow(0, 0, s.decay).add_(s.master.narrow(0, 0, s.decay), weight_decay_);
    replace(s.state[0], s.state[0].mul(momentum_).add_(g), finite);
    replace(s.master, s.master.sub(s.state[0], step.lr), finite);
    if (s.model.defined()) s.model.copy_(s.master);
  }

 private:
  const double momentum_, weight_decay_;
};

// Chen et al., NeurIPS 2023: the sign of an average of gradient and momentum; decay decoupled. Its betas are adam_beta1 and adam_beta2.
class LionRule : public UpdateRule {
 public:
  explicit LionRule(const RunConfig& c) : beta1_(c.adam_beta1), beta2_(c.adam_beta2), weight_decay_(c.weight_decay) {}
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override { state.add(at::zeros({size}, options)); }
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    const at::Tensor finite = step.grad_scale.isfinite(), g = s.grad.to(s.master.scalar_type()).mul(step.grad_scale), m = s.state[0];
    const at::Tensor next = s.master.clone();
    next.narrow(0, 0, s.decay).mul_(1 - step.lr * weight_decay_);
    next.sub_(m.mul(beta1_).add_(g, 1 - beta1_).sign_(), step.lr);
    replace(s.master, next, finite);
    replace(m, m.mul(beta2_).add_(g, 1 - beta2_), finite);
    if (s.model.defined()) s.model.copy_(s.master);
  }

 private:
  const double beta1_, beta2_, weight_decay_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_rule_named(const std::string& name, const RunConfig& config) {
  if (name == "adamw_8bit") return std::make_unique<AdamW8BitRule>(config);
  if (name == "sgd") return std::make_unique<SgdRule>(config);
  if (name == "lion") return std::make_unique<LionRule>(config);
  MUSTER_CHECK_EQ(name, "adamw");
  return std::make_unique<AdamWRule>(config);
}

}  // namespace muster::worker
