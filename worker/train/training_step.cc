#include "worker/train/training_step.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "worker/kernels/kernels.h"
#include "worker/optim/schedule.h"

namespace muster::worker {

TrainingStep::TrainingStep(const RunConfig& config, Model& model, sharding::DataParallel& parallel, Optimizer& optimizer)
    : config_(config), model_(model), parallel_(parallel), optimizer_(optimizer) {}

StepOutcome TrainingStep::run(const std::vector<Batch>& micro_batches, int64_t step) {
  totals_ = at::zeros({2}, parallel_.flat().grad_options().dtype(at::kDouble));
  for (size_t i = 0; i < micro_batches.size(); ++i) forward_backward(micro_batches[i], step, i + 1 == micro_batches.size());
  parallel_.finalize();
  totals_work_->wait();
  const at::Tensor norm = global_norm();
  optimizer_.step(grad_scale(norm), learning_rate(config_, step));
  parallel_.publish();
  if (const auto old_layout = parallel_.rebuild_once()) optimizer_.relayout(*old_layout);
  return {totals_, norm};
}

void TrainingStep::forward_backward(const Batch& batch, int64_t step, bool last) {
  parallel_.begin_micro_batch(last);
  const at::Tensor loss = model_.loss(batch.tokens, batch.targets, {true, step, batch.first_sample});
  totals_[0].add_(loss.detach().squeeze());
  totals_[1].add_(batch.targets.ge(0).sum());
  // Issued before the buckets, so that it is over long before it is needed.
  if (last) totals_work_ = parallel_.groups().world().all_reduce(totals_);
  loss.backward();
}

at::Tensor TrainingStep::global_norm() const {
  const c10::AutoGradMode no_graph(false);
  at::Tensor squares;
  for (const at::Tensor& gradients : parallel_.flat().owned_gradients()) {
    const at::Tensor part = kernels::sum_of_squares(gradients);
    squares = squares.defined() ? squares.add_(part) : part;
  }
  if (parallel_.flat().shards_state()) parallel_.groups().shard().all_reduce(squares)->wait();
  return squares.sqrt_().div_(totals_[1]);
}

// Gradients are sums over tokens: 1 / tokens makes them a mean, min(1, clip / norm) clips it.
at::Tensor TrainingStep::grad_scale(const at::Tensor& norm) const {
  const c10::AutoGradMode no_graph(false);
  at::Tensor scale = totals_.narrow(0, 1, 1).reciprocal();
  if (config_.clip_grad > 0) scale = scale.mul(norm.add(1e-6).reciprocal_().mul_(config_.clip_grad).clamp_max_(1.0));
  return scale.to(optimizer_.master_dtype());
}

}  // namespace muster::worker
