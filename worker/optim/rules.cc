#include "worker/optim/rules.h"

#include <ATen/ops/zeros.h>

#include "comm/base/error.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/optimizers.h"

namespace muster::worker {
namespace {

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

// AdamW whose moments are kept in 8 bits (Dettmers et al., ICLR 2022). State: codes and block scales of each moment.
class AdamW8BitRule : public UpdateRule {
 public:
  explicit AdamW8BitRule(const RunConfig& c) : beta1_(c.adam_beta1), beta2_(c.adam_beta2), eps_(c.adam_eps), weight_decay_(c.weight_decay) {}
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override {
    for (int moment = 0; moment < 2; ++moment) {
      state.add(at::zeros({size}, options.dtype(at::kByte)));
      state.add(at::zeros({blocks(size)}, options.dtype(at::kFloat)));  // all zero: a moment of zeros
    }
  }
  at::Tensor state_part(const at::Tensor& state, int64_t begin, int64_t size) const override {
    MUSTER_CHECK_EQ(begin % kernels::kEightBitBlock, 0);  // frozen parameters may cut a bucket elsewhere: not with 8-bit states
    return state.scalar_type() == at::kByte ? state.narrow(0, begin, size) : state.narrow(0, begin / kernels::kEightBitBlock, blocks(size));
  }
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    kernels::adamw_8bit(s.master, s.grad, {s.state[0], s.state[1]}, {s.state[2], s.state[3]}, s.model, s.decay, step.grad_scale,
                        {step.lr, beta1_, beta2_, eps_, weight_decay_, step.number});
  }

 private:
  static int64_t blocks(int64_t size) { return (size + kernels::kEightBitBlock - 1) / kernels::kEightBitBlock; }
  const double beta1_, beta2_, eps_, weight_decay_;
};

// Rules with one moment.
class MomentumRule : public UpdateRule {
 public:
  void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const override { state.add(at::zeros({size}, options)); }
};

// As torch.optim.SGD with momentum: the decay is part of the gradient.
class SgdRule : public MomentumRule {
 public:
  explicit SgdRule(const RunConfig& c) : momentum_(c.sgd_momentum), weight_decay_(c.weight_decay) {}
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    kernels::sgd_momentum(s.master, s.grad, s.state[0], s.model, s.decay, step.grad_scale, {step.lr, momentum_, weight_decay_});
  }

 private:
  const double momentum_, weight_decay_;
};

// Chen et al., NeurIPS 2023. Its betas are adam_beta1 and adam_beta2.
class LionRule : public MomentumRule {
 public:
  explicit LionRule(const RunConfig& c) : beta1_(c.adam_beta1), beta2_(c.adam_beta2), weight_decay_(c.weight_decay) {}
  void apply(const UpdateSlice& s, const UpdateStep& step) const override {
    kernels::lion(s.master, s.grad, s.state[0], s.model, s.decay, step.grad_scale, {step.lr, beta1_, beta2_, weight_decay_});
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
