#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/data_parallel.h"
#include "worker/models/model.h"
#include "worker/optim/optimizer.h"

namespace muster::worker {

struct Batch {
  at::Tensor tokens, targets;  // (B, T) int64 on the device
  int64_t first_sample = 0;    // global number of row 0
};

// What a step leaves on the device; reading it synchronises.
struct StepOutcome {
  at::Tensor totals;     // {sum of losses, counted tokens} over all ranks and micro-batches, float64
  at::Tensor grad_norm;  // global norm of the mean gradient before clipping, float64, one element
};

// One optimizer step, read top-down: micro-batches → backward with overlapped reduction → global norm → optimizer.
// No host synchronisation on a GPU, and no shape that changes from step to step.
//
// Threads: the training thread. Everything given must outlive it. Failure: PeerError from a collective.
class TrainingStep {
 public:
  TrainingStep(const RunConfig& config, Model& model, sharding::DataParallel& parallel, Optimizer& optimizer);

  // micro_batches: all of this rank's for the step. step is 0-based.
  StepOutcome run(const std::vector<Batch>& micro_batches, int64_t step);

 private:
  void forward_backward(const Batch& batch, int64_t step, bool last);
  at::Tensor global_norm() const;
  at::Tensor grad_scale(const at::Tensor& norm) const;

  const RunConfig& config_;
  Model& model_;
  sharding::DataParallel& parallel_;
  Optimizer& optimizer_;
  at::Tensor totals_;
  comm::WorkPtr totals_work_;
};

}  // namespace muster::worker
