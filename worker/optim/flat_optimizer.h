#pragma once

#include <memory>
#include <vector>

#include "worker/optim/optimizer.h"
#include "worker/optim/rules.h"
#include "worker/optim/state.h"

namespace muster::worker {

// A rule that treats elements alike, wherever they are in a tensor: one call a bucket.
class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(sharding::FlatModel& model, std::unique_ptr<UpdateRule> rule, bool offload);
  void step(const at::Tensor& grad_scale, double lr) override;
  void reset() override;
  at::ScalarType master_dtype() const override { return master_dtype_of(model_); }
  int64_t state_bytes() const override;

 private:
  bool has_master() const { return master_dtype() != model_.param_dtype(); }
  void update(const sharding::UpdateRange& range, const std::vector<at::Tensor>& state, const UpdateStep& step);

  sharding::FlatModel& model_;
  const std::unique_ptr<UpdateRule> rule_;
  const bool offload_;
  int64_t steps_ = 0;
  std::vector<BucketState> states_;  // by bucket: the master first, where there is one
};

}  // namespace muster::worker
