#include "worker/train/training_step.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "worker/kernels/kernels.h"
#include "worker/optim/schedule.h"

namespace muster::worker {

TrainingStep::TrainingStep(const RunConfig& config, Model& model, sharding::FlatModel& flat, sharding::Reducer& reducer, AdamW& optimizer,
                           comm::Communicator& communicator)
    : config_(config), model_(model), flat_(flat), reducer_(reducer), optimizer_(optimizer), communicator_(communicator) {}

StepOutcome TrainingStep::run(const std::vector<Batch>& micro_batches, int64_t step) {
  totals_ = at::zeros({2}, flat_.grad_buffer().options().dtype(at::kDouble));
  for (size_t i = 0; i < micro_batches.size(); ++i) forward_backward(micro_batches[i], step, i + 1 == micro_batches.size());
  reducer_.finalize();
  totals_work_->wait();
  const at::Tensor norm = global_norm();
  optimizer_.step(grad_scale(norm), learning_rate(config_, step));
  reducer_.publish();
  if (const auto old_layout = reducer_.rebuild_once()) optimizer_.relayout(*old_layout);
  return {totals_, norm};
}

void TrainingStep::forward_backward(const Batch& batch, int64_t step, bool last) {
  reducer_.begin_backward(last);
  const at::Tensor loss = model_.loss(batch.tokens, batch.targets, {true, step, batch.first_sample});
  totals_[0].add_(loss.detach().squeeze());
  totals_[1].add_(batch.targets.ge(0).sum());
  // Issued before the buckets, so that it is over long before it is needed.
  if (last) totals_work_ = communicator_.all_reduce(totals_);
  loss.backward();
}

at::Tensor TrainingStep::global_norm() const {
  const c10::AutoGradMode no_graph(false);
  if (!reducer_.shards_optimizer()) return kernels::sum_of_squares(flat_.grad_buffer()).sqrt_().div_(totals_[1]);
  at::Tensor squares = at::zeros({1}, totals_.options());
  for (const auto& range : reducer_.owned()) squares.add_(kernels::sum_of_squares(flat_.grad_buffer().narrow(0, range.begin, range.size())));
  communicator_.all_reduce(squares)->wait();
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
