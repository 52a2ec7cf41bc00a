#pragma once
// A model's parameters and gradients over the data-parallel ranks: what a trainer calls, in the order of a step.

#include <functional>

#include "sharding/data_parallel/gatherer.h"
#include "sharding/data_parallel/reducer.h"
#include "sharding/mesh/groups.h"

namespace muster::sharding {

// Threads: the training thread. Ownership: holds the buffers; parameters and groups must outlive it. Collective: all ranks of the
// groups call it alike. Failure: PeerError.
class DataParallel {
 public:
  // options.shard and shards are set from the groups. reduction.overlap also decides about gathers.
  DataParallel(std::vector<Parameter*> parameters, const UnitSchedule& schedule, FlatOptions options, const Groups& groups,
               Reducer::Options reduction);

  FlatModel& flat() { return flat_; }
  const FlatModel& flat() const { return flat_; }
  const Groups& groups() const { return groups_; }

  // fill writes a parameter's tensor. All ranks get what the first rank of the groups wrote.
  void initialize(const std::function<void(Parameter&)>& fill);

  // Shows every parameter with its value whole, a bucket after the other. Collective with stage 3. Not within a step.
  void visit(const std::function<void(const Parameter&)>& show);

  // Before each forward pass of a step; last: its gradients complete the step.
  void begin_micro_batch(bool last);
  // After the last backward pass: owned gradients are whole.
  void finalize();
  // After the optimizer step: parameters become whole again, or will be when they are used.
  void publish();
  // See Reducer.
  bool rebuild_once() { return reducer_.rebuild_once(); }

  // Around forward passes without a backward pass; all ranks run the same number of them.
  void begin_forward() { gatherer_.begin(PassKind::kForward); }
  void end_forward() { gatherer_.end(); }

 private:
  const Groups& groups_;
  FlatModel flat_;
  Reducer reducer_;
  Gatherer gatherer_;
};

}  // namespace muster::sharding
