#include "worker/optim/flat_optimizer.h"

#include <c10/core/GradMode.h>

#include "comm/base/error.h"

namespace muster::worker {

FlatOptimizer::FlatOptimizer(sharding::FlatModel& model, std::unique_ptr<UpdateRule> rule, bool offload)
    : model_(model), rule_(std::move(rule)), offload_(offload) {
  reset();
}

void FlatOptimizer::reset() {
  MUSTER_CHECK_EQ(steps_, 0);
  const c10::AutoGradMode no_graph(false);
  states_.clear();
  for (int b = 0; b < model_.buckets(); ++b) {
    const at::Tensor parameters = model_.owned_parameters(b);
    BucketState state(parameters.device(), offload_);
    if (has_master()) state.add(parameters.to(master_dtype()));
    rule_->add_state(state, parameters.numel(), parameters.options().dtype(master_dtype()));
    states_.push_back(std::move(state));
  }
}

void FlatOptimizer::step(const at::Tensor& grad_scale, double lr) {
  const c10::AutoGradMode no_graph(false);
  const UpdateStep step{grad_scale, lr, ++steps_};
  std::vector<at::Tensor> state;
  const auto& updates = model_.updates();
  for (size_t i = 0; i < updates.size(); ++i) {
    const int bucket = updates[i].bucket;
    if (i == 0 || updates[i - 1].bucket != bucket) state = states_[bucket].take();
    update(updates[i], state, step);
    if (i + 1 == updates.size() || updates[i + 1].bucket != bucket) states_[bucket].put_back(state);
  }
}

void FlatOptimizer::update(const sharding::UpdateRange& range, const std::vector<at::Tensor>& state, const UpdateStep& step) {
  const at::Tensor parameters = model_.owned_parameters(range.bucket).narrow(0, range.begin, range.size);
  UpdateSlice slice;
  slice.grad = model_.owned_gradients(range.bucket).narrow(0, range.begin, range.size);
  slice.master = has_master() ? state[0].narrow(0, range.begin, range.size) : parameters;
  if (has_master()) slice.model = parameters;
  slice.decay = range.decay;
  for (size_t i = has_master() ? 1 : 0; i < state.size(); ++i) slice.state.push_back(rule_->state_part(state[i], range.begin, range.size));
  rule_->apply(slice, step);
}

int64_t FlatOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const BucketState& state : states_) bytes += state.bytes();
  return bytes;
}

}  // namespace muster::worker
