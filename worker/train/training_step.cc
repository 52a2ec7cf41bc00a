#include "worker/train/training_step.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "worker/kernels/kernels.h"
#include "worker/optim/schedule.h"

namespace muster::worker {

TrainingStep::TrainingStep(const RunConfig& config, Model& model, sharding::DataParallel& parallel, Optimizer& optimizer)
    : config_(config),
      model_(model),
      parallel_(parallel),
      optimizer_(optimizer),
      scaler_(config),
      decides_on_host_(config.precision == "fp16" || parallel.flat().grad_options().device().is_cpu()),
      skipped_(at::zeros({1}, parallel.flat().grad_options().dtype(at::kDouble))) {}

StepOutcome TrainingStep::run(const std::vector<Batch>& micro_batches, int64_t step) {
  totals_ = at::zeros({2}, skipped_.options());
  for (size_t i = 0; i < micro_batches.size(); ++i) forward_backward(micro_batches[i], step, i + 1 == micro_batches.size());
  parallel_.finalize();
  totals_work_->wait();
  if (parallel_.rebuild_once()) optimizer_.reset();  // in the first step, before any update
  const at::Tensor norm = global_norm();
  const at::Tensor finite = norm.isfinite().to(at::kDouble);
  skipped_ = skipped_.add(1).mul_(finite.neg().add_(1));
  const StepOutcome outcome{totals_, norm, skipped_};
  const bool apply = !decides_on_host_ || finite.item<double>() != 0;
  if (decides_on_host_ && !apply) check(outcome, step);
  if (apply) {
    optimizer_.step(grad_scale(norm), learning_rate(config_, step));
    parallel_.publish();
  }
  if (decides_on_host_) scaler_.update(apply);
  return outcome;
}

void TrainingStep::forward_backward(const Batch& batch, int64_t step, bool last) {
  parallel_.begin_micro_batch(last);
  const at::Tensor loss = model_.loss(batch.tokens, batch.targets, {true, step, batch.first_sample, gradient_scale()});
  totals_[0].add_(loss.detach().squeeze());
  totals_[1].add_(batch.targets.ge(0).sum());
  // Issued before the buckets, so that it is over long before it is needed.
  if (last) totals_work_ = parallel_.groups().world().all_reduce(totals_);
  loss.backward();
}

// Losses are sums over tokens. The loss scale is meant for the mean over a micro-batch, as everywhere.
double TrainingStep::gradient_scale() const {
  if (config_.precision != "fp16") return 1;
  return scaler_.scale() / static_cast<double>(config_.micro_batch_size * config_.seq_length);
}

at::Tensor TrainingStep::global_norm() const {
  const c10::AutoGradMode no_graph(false);
  at::Tensor squares;
  for (const at::Tensor& gradients : parallel_.flat().owned_gradients()) {
    const at::Tensor part = kernels::sum_of_squares(gradients);
    squares = squares.defined() ? squares.add_(part) : part;
  }
  if (parallel_.flat().shards_state()) parallel_.groups().shard().all_reduce(squares)->wait();
  return squares.sqrt_().div_(totals_[1].clamp_min(1.0).mul_(gradient_scale()));
}

// Gradients are sums over tokens: 1 / tokens makes them a mean, min(1, clip / norm) clips it. Not a number where the norm is not
// finite: the optimizer then changes nothing.
at::Tensor TrainingStep::grad_scale(const at::Tensor& norm) const {
  const c10::AutoGradMode no_graph(false);
  at::Tensor scale = totals_.narrow(0, 1, 1).clamp_min(1.0).mul_(gradient_scale()).reciprocal_().add_(norm.sub(norm));
  if (config_.clip_grad > 0) scale = scale.mul(norm.add(1e-6).reciprocal_().mul_(config_.clip_grad).clamp_max_(1.0));
  return scale.to(optimizer_.master_dtype());
}

void TrainingStep::check(const StepOutcome& outcome, int64_t step) {
  const auto skipped = static_cast<int64_t>(outcome.skipped.item<double>());
  if (skipped == 0) return;
  if (skipped < config_.max_skipped_steps) {
    if (parallel_.groups().world().rank() == 0) log_warn("step {}: gradients are not finite; the step is skipped ({} in a row)", step + 1, skipped);
    return;
  }
  throw DivergedError(fmt::format("step {}: gradients are not finite, the {}. step in a row (max_skipped_steps {}){}; try a lower lr, clip_grad, or bf16",
                                  step + 1, skipped, config_.max_skipped_steps, first_bad_parameter()));
}

// Among all ranks' parts; empty where the gradients are finite again. Collective where steps are decided on the host.
std::string TrainingStep::first_bad_parameter() {
  const auto& parameters = parallel_.flat().parameters();
  int64_t first = parallel_.flat().first_nonfinite_gradient();
  if (decides_on_host_) {
    at::Tensor index = at::full({1}, first, skipped_.options().dtype(at::kLong));
    parallel_.groups().world().all_reduce(index, comm::ReduceOp::kMin)->wait();
    first = index.item<int64_t>();
  }
  return first < static_cast<int64_t>(parameters.size()) ? ", first in " + parameters[first]->name : "";
}

}  // namespace muster::worker
