#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/data_parallel.h"
#include "worker/models/model.h"
#include "worker/optim/optimizer.h"
#include "worker/precision/loss_scaler.h"

namespace muster::worker {

struct Batch {
  at::Tensor tokens, targets;  // (B, T) int64 on the device
  int64_t first_sample = 0;    // global number of row 0
};

// What a step leaves on the device; reading it synchronises.
struct StepOutcome {
  at::Tensor totals;     // {sum of losses, counted tokens} over all ranks and micro-batches, float64
  at::Tensor grad_norm;  // global norm of the mean gradient before clipping, float64, one element
  at::Tensor skipped;    // steps in a row up to this one whose gradients were not finite, float64, one element
};

// One optimizer step, read top-down: micro-batches → backward with overlapped reduction → global norm → optimizer.
// No shape changes from step to step, and on a GPU nothing waits for it except fp16's decision on the loss scale.
//
// A step whose global norm is not finite changes nothing: no parameter, no optimizer state. All ranks see the same norm, so they
// decide alike.
//
// Threads: the training thread. Everything given must outlive it. Failure: PeerError from a collective; DivergedError after
// config.max_skipped_steps such steps in a row.
class TrainingStep {
 public:
  TrainingStep(const RunConfig& config, Model& model, sharding::DataParallel& parallel, Optimizer& optimizer);

  // micro_batches: all of this rank's for the step. step is 0-based.
  StepOutcome run(const std::vector<Batch>& micro_batches, int64_t step);
  // Warns of skipped steps; DivergedError where the limit is reached. Waits for the device, so run() does it itself only where that
  // costs nothing (CPU) or is done anyway (fp16): decides_on_host(). Elsewhere the caller does, when it reads the outcome.
  void check(const StepOutcome& outcome, int64_t step);
  bool decides_on_host() const { return decides_on_host_; }
  double loss_scale() const { return scaler_.scale(); }

 private:
  void forward_backward(const Batch& batch, int64_t step, bool last);
  at::Tensor global_norm() const;
  at::Tensor grad_scale(const at::Tensor& norm) const;
  double gradient_scale() const;
  std::string first_bad_parameter();

  const RunConfig& config_;
  Model& model_;
  sharding::DataParallel& parallel_;
  Optimizer& optimizer_;
  LossScaler scaler_;
  const bool decides_on_host_;
  at::Tensor totals_, skipped_;
  comm::WorkPtr totals_work_;
};

}  // namespace muster::worker
