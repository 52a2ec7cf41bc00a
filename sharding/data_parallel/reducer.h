#pragma once
// Sums gradients over the data-parallel ranks while the backward pass still runs.

#include <optional>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "sharding/data_parallel/flat_model.h"

namespace muster::sharding {

// Refuses a model whose parameters differ from rank 0's in number, order, name, shape or dtype: InputError naming the first
// difference. Collective.
void check_same_parameters(const std::vector<Parameter*>& parameters, comm::Rendezvous& rendezvous, Deadline deadline);

// Replicated parameters, all-reduced gradients (DDP; Li et al., VLDB 2020).
//
// A bucket is reduced when all its parameters have reported, buckets strictly in index order on every rank, so that ranks
// whose gradients arrive in another order still match. A parameter that no operation used counts as zero: finalize() reduces
// what is left, on every rank alike, so an unused or rank-dependent parameter is never a hang. After the first reduced
// backward pass the buckets are rebuilt once in the order in which rank 0 saw gradients arrive.
//
// The sum is left undivided: the optimizer divides by the number of counted tokens.
//
// Threads: as Parameter. Ownership: model and communicator must outlive it. Blocking: only finalize() (CPU).
// Failure: PeerError from finalize().
class Reducer {
 public:
  struct Options {
    bool overlap = true;  // false: everything in finalize(); the same bits
  };
  Reducer(FlatModel& model, comm::Communicator& communicator, Options options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // All ranks get rank 0's parameters.
  void broadcast_parameters();

  // Before the backward pass of each micro-batch. last: gradients are reduced in this pass (otherwise only accumulated).
  void begin_backward(bool last);
  // After the last backward pass: gradients are whole and equal on all ranks; the next step starts from nothing.
  void finalize();

  // After the first finalize(): rebuilds the buckets in arrival order and returns the old layout; later nothing. Collective.
  std::optional<Partition> rebuild_once();

 private:
  void completed(Parameter& parameter);
  void launch_ready();
  void launch(int bucket);
  std::vector<int> arrival_order_of_rank0();

  FlatModel& model_;
  comm::Communicator& communicator_;
  const Options options_;
  bool reducing_ = false, rebuilt_ = false;
  std::vector<int> missing_;   // by bucket: parameters that have not reported
  int next_bucket_ = 0;        // first bucket not launched
  std::vector<int> arrivals_;  // parameter indices, recorded until the rebuild
  std::vector<comm::WorkPtr> works_;
};

}  // namespace muster::sharding
