#pragma once

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/reducer.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// AdamW (Loshchilov and Hutter, 2019) on what this rank owns of the flat buffers, one call a bucket. Parameters in a 16-bit dtype get
// a float32 master copy; float32 and float64 parameters are their own master.
//
// Memory: two buffers (three with a master) of the owned size: the whole partition with ZeRO-0, a rank's share with ZeRO-1.
// Threads: the training thread. `model` and `reducer` must outlive it.
class AdamW {
 public:
  // Reads the parameters: build it after they have their first values.
  AdamW(sharding::FlatModel& model, const sharding::Reducer& reducer, const RunConfig& config);

  // grad_scale: one element of the master's dtype on the model's device; multiplies the gradient buffer.
  void step(const at::Tensor& grad_scale, double lr);
  // After FlatModel::rebuild (ZeRO-0 only, where the state has the model's layout).
  void relayout(const sharding::Partition& old_partition);

  at::ScalarType master_dtype() const { return m_.scalar_type(); }
  int64_t state_bytes() const;

 private:
  sharding::FlatModel& model_;
  const sharding::Reducer& reducer_;
  const double beta1_, beta2_, eps_, weight_decay_;
  int64_t steps_ = 0;
  // The owned ranges of all buckets, one after the other.
  at::Tensor master_;  // undefined where the parameters are their own master
  at::Tensor m_, v_;
};

}  // namespace muster::worker
