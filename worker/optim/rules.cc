#include "worker/optim/rules.h"

#include <ATen/ops/zeros.h>

#include "comm/base/error.h"
#include "worker/kernels/kernels.h"

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

}  // namespace

std::unique_ptr<UpdateRule> make_rule(const RunConfig& config) {
  MUSTER_CHECK_EQ(config.optimizer, "adamw");
  return std::make_unique<AdamWRule>(config);
}

}  // namespace muster::worker
