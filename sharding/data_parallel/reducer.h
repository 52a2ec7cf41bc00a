#pragma once
// Sums gradients over the data-parallel ranks while the backward pass still runs.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "sharding/data_parallel/compression.h"
#include "sharding/data_parallel/flat_model.h"

namespace muster::sharding {

// Refuses a model whose parameters differ from rank 0's in number, order, name, shape or dtype: InputError naming the first
// difference. Collective.
void check_same_parameters(const std::vector<Parameter*>& parameters, comm::Rendezvous& rendezvous, Deadline deadline);

// Gradients summed over ranks while the backward pass runs (DDP; Li et al., VLDB 2020; ZeRO; Rajbhandari et al., SC20).
//
// | stage | when a bucket's gradients are complete | in which micro-batch |
// | 0     | all-reduce                             | the last             |
// | 1     | reduce-scatter                         | the last             |
// | 2, 3  | reduce-scatter, added to the shard     | each                 |
// Hybrid sharding: the reduce-scatter runs in the shard group, then, once a step, an all-reduce of the shard in the replica group.
//
// A bucket is reduced when all its parameters have reported, buckets strictly in index order on every rank, so that ranks
// whose gradients arrive in another order still match. A parameter that no operation used counts as zero: what is left at the
// end of a pass is reduced then, on every rank alike, so an unused or rank-dependent parameter is never a hang. With stage 0 the
// buckets are rebuilt once after the first reduced backward pass, in the order in which rank 0 saw gradients arrive; with the
// others the shards are of that layout from the start, and it stays.
//
// The sum is left undivided: the optimizer divides by the number of counted tokens.
//
// Memory: stages 2 and 3 lend each bucket a whole buffer from its first gradient to the end of its reduction: at most
// kInFlight + 1 buffers where gradients arrive in order, and one more for a tied embedding, whose gradient begins first and ends last.
// Threads: as Parameter. Ownership: model and communicators must outlive it. Blocking: finalize(), and with stages 2 and 3 the
// reduction of a bucket waits for the one kInFlight before it (CPU). Failure: PeerError from these.
class Reducer {
 public:
  static constexpr size_t kInFlight = 2;

  struct Options {
    bool overlap = true;  // false: nothing is reduced while other work runs; the same bits
    std::function<std::unique_ptr<CompressedSum>(FlatModel&, comm::Communicator&)> compression;  // stage 0; empty: exact sums
    std::optional<at::ScalarType> wire_dtype;  // gradients travel in this dtype; empty: in their own
  };
  // shard: ranks that cut each bucket among them; replica: ranks that hold the same shard. Either may be of size 1.
  Reducer(FlatModel& model, comm::Communicator& shard, comm::Communicator& replica, Options options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Before the backward pass of each micro-batch. last: of the step.
  void begin_backward(bool last);
  // Instead, where backward passes of several micro-batches interleave (pipelines): once, before the step's first; a parameter is
  // complete after `passes` of them. Stages 0 and 1.
  void begin_step(int passes);
  // After the last backward pass: owned gradients are whole; the next step starts from nothing.
  void finalize();

  // After the first finalize() with stage 0: rebuilds the buckets in arrival order, which gives the flat buffers a new layout, and
  // returns true; later nothing. Collective.
  bool rebuild_once();

 private:
  struct Flight {  // a reduce-scatter under way
    int bucket = 0;
    bool last = false;    // of the step
    comm::WorkPtr work;
    at::Tensor whole;     // the pool's buffer (stages 2, 3)
    at::Tensor incoming;  // to go to what is owned; undefined: it went there directly
    bool adds = false;    // incoming is added, else copied
  };
  struct Sum {  // an all-reduce under way
    comm::WorkPtr work;
    at::Tensor travelling, gradients;  // the same, or a copy in the wire's dtype
  };

  at::ScalarType wire_dtype() const { return options_.wire_dtype.value_or(c10::typeMetaToScalarType(model_.grad_options().dtype())); }
  at::Tensor for_the_wire(const at::Tensor& gradients) const { return gradients.to(wire_dtype()); }
  bool reduces() const { return last_ || model_.shards_gradients(); }
  void lend_buffer(Parameter& parameter);
  void completed(Parameter& parameter);
  void launch_ready();
  void launch_rest();
  void launch(int bucket);
  void scatter(int bucket);
  void land(Flight flight);
  void land_down_to(size_t count);
  void reduce_over_replicas(const at::Tensor& gradients);
  std::vector<int> arrival_order_of_rank0();

  FlatModel& model_;
  comm::Communicator& shard_;
  comm::Communicator& replica_;
  const Options options_;
  BufferPool incoming_pool_;
  bool last_ = false, in_pass_ = false, first_pass_ = true, rebuilt_ = false;
  std::vector<int> missing_;   // by bucket: parameters that have not reported
  std::vector<at::Tensor> lent_;  // by bucket: the pool's buffer
  int next_bucket_ = 0;        // first bucket not launched
  std::vector<int> arrivals_;  // parameter indices, recorded until the rebuild
  std::deque<Flight> flights_;
  std::unique_ptr<CompressedSum> compressed_;
  std::vector<Sum> sums_;  // waited for in finalize()
};

}  // namespace muster::sharding
