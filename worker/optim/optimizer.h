#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/data_parallel.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// The update rule on what this rank owns of the flat buffers. Parameters in a 16-bit dtype get a float32 master copy; float32 and
// float64 parameters are their own master.
//
// Memory: the rule's state for what is owned: the whole partition with ZeRO-0, a rank's share else. Offloaded, it lives in pinned host
// memory and visits the device bucket by bucket.
// Threads: the training thread. The model must outlive it.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // grad_scale: one element of the master's dtype on the model's device; multiplies the gradients. Not finite: nothing changes.
  virtual void step(const at::Tensor& grad_scale, double lr) = 0;
  // Starts anew with the model's present layout and values. Before the first step.
  virtual void reset() = 0;
  virtual at::ScalarType master_dtype() const = 0;
  virtual int64_t state_bytes() const = 0;
};

// config.optimizer: adamw, adamw_8bit, sgd, lion or muon. Reads the parameters: make it after they have their first values.
std::unique_ptr<Optimizer> make_optimizer(sharding::DataParallel& parallel, const RunConfig& config);

}  // namespace muster::worker
