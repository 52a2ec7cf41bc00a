#pragma once

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/flat_model.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// The update rule on what this rank owns of the flat buffers, one call a bucket: AdamW (Loshchilov and Hutter, 2019). Parameters in a
// 16-bit dtype get a float32 master copy; float32 and float64 parameters are their own master.
//
// Memory: two buffers (three with a master) of the owned size: the whole partition with ZeRO-0, a rank's share else.
// Threads: the training thread. `model` must outlive it.
class Optimizer {
 public:
  // Reads the parameters: build it after they have their first values.
  Optimizer(sharding::FlatModel& model, const RunConfig& config);

  // grad_scale: one element of the master's dtype on the model's device; multiplies the gradients. Not finite: nothing changes.
  void step(const at::Tensor& grad_scale, double lr);
  // After FlatModel::rebuild (ZeRO-0 only, where the state has the model's layout).
  void relayout(const sharding::Partition& old_partition);

  at::ScalarType master_dtype() const { return m_.scalar_type(); }
  int64_t state_bytes() const;

 private:
  sharding::FlatModel& model_;
  const double beta1_, beta2_, eps_, weight_decay_;
  int64_t steps_ = 0;
  // The owned ranges of all buckets, one after the other (ShardRange::at).
  at::Tensor master_;  // undefined where the parameters are their own master
  at::Tensor m_, v_;
};

}  // namespace muster::worker
