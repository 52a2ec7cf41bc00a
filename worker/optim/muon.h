#pragma once

#include <vector>

#include "sharding/data_parallel/data_parallel.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/rules.h"

namespace muster::worker {

// Muon (Jordan, 2024) for hidden matrices (Parameter::hidden_matrix), with Nesterov momentum, decoupled weight decay and the update scaled
// to AdamW's size by 0.2 sqrt(max(rows, cols)) (Liu et al., 2025), so that one learning rate serves both; AdamW for all others.
//
// With ZeRO, momentum is sharded like all state; the momentum of a bucket is gathered for the step, and each rank orthogonalizes the
// matrices that its shard touches. Memory: one state buffer for matrices, two for the rest; a whole bucket for the gather.
// Collective with ZeRO 1 to 3. Failure: PeerError.
class Muon : public Optimizer {
 public:
  Muon(sharding::DataParallel& parallel, const RunConfig& config);
  void step(const at::Tensor& grad_scale, double lr) override;
  void reset() override;
  at::ScalarType master_dtype() const override { return master_dtype_of(model_); }
  int64_t state_bytes() const override;

 private:
  struct Segment {  // of one parameter, in what this rank owns of a bucket
    int parameter = 0, bucket = 0;
    int64_t begin = 0, size = 0;  // elements of the owned part
    int64_t at = 0;               // where it begins in the parameter
    BucketState state;            // the master where there is one, then the rule's
  };

  bool has_master() const { return master_dtype() != model_.param_dtype(); }
  void add_segments(int bucket);
  at::Tensor gathered_momentum(int bucket, const UpdateStep& step);
  void step_bucket(int bucket, const UpdateStep& step);
  void step_matrix(Segment& segment, const at::Tensor& whole_momentum, const UpdateStep& step);
  void step_other(Segment& segment, const UpdateStep& step);

  sharding::DataParallel& parallel_;
  sharding::FlatModel& model_;
  const double momentum_, weight_decay_;
  const bool offload_;
  const std::unique_ptr<UpdateRule> rest_;
  int64_t steps_ = 0;
  std::vector<std::vector<Segment>> segments_;  // by bucket
};

}  // namespace muster::worker
