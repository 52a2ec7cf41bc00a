#pragma once
// One update rule a class: what state an element has, and how a stretch of elements is updated.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/config/run_config.h"
#include "worker/optim/state.h"

namespace muster::worker {

// A stretch of one bucket. All tensors have the same number of elements, except state in blocks.
struct UpdateSlice {
  at::Tensor master, grad;
  at::Tensor model;             // 16-bit copy of master; undefined where the parameters are their own master
  int64_t decay = 0;            // the first of them have weight decay
  std::vector<at::Tensor> state;  // of the rule, in the order of add_state
};

struct UpdateStep {
  at::Tensor grad_scale;  // one element
  double lr = 0;
  int64_t number = 1;     // from 1
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Adds the rule's state for `size` elements, options of the master.
  virtual void add_state(BucketState& state, int64_t size, const at::TensorOptions& options) const = 0;
  // The part of one state tensor that belongs to elements [begin, begin + size).
  virtual at::Tensor state_part(const at::Tensor& state, int64_t begin, int64_t size) const { return state.narrow(0, begin, size); }
  virtual void apply(const UpdateSlice& slice, const UpdateStep& step) const = 0;
};

// adamw, adamw_8bit, sgd or lion.
std::unique_ptr<UpdateRule> make_rule_named(const std::string& name, const RunConfig& config);

}  // namespace muster::worker
