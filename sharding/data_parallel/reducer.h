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

// What a rank owns of every bucket: it steps the optimizer there, and nobody else does.
struct OwnedRange {
  int64_t begin = 0, end = 0;  // elements of the flat buffers
  int64_t decay_end = 0;       // [begin, decay_end) has weight decay
  int64_t size() const { return end - begin; }
};

// Gradients summed over ranks while the backward pass runs (DDP; Li et al., VLDB 2020), and, with ZeRO-1, the optimizer's share of
// every rank (Rajbhandari et al., SC20).
//
// | stage | bucket's gradients complete | a rank owns | after the optimizer step |
// | 0     | all-reduce                  | all of it   | -                        |
// | 1     | reduce-scatter              | its shard   | all-gather of parameters, overlapping what follows |
// Volume a step and rank: 2 gradient sizes either way.
//
// A bucket is reduced when all its parameters have reported, buckets strictly in index order on every rank, so that ranks
// whose gradients arrive in another order still match. A parameter that no operation used counts as zero: finalize() reduces
// what is left, on every rank alike, so an unused or rank-dependent parameter is never a hang. With stage 0 the buckets are
// rebuilt once after the first reduced backward pass, in the order in which rank 0 saw gradients arrive; with stage 1 the
// optimizer's shards are of that layout from the start, and it stays.
//
// The sum is left undivided: the optimizer divides by the number of counted tokens.
//
// Threads: as Parameter. Ownership: model and communicator must outlive it. Blocking: only finalize() and the first use of a
// parameter after publish() (CPU). Failure: PeerError from these.
class Reducer {
 public:
  struct Options {
    bool overlap = true;  // false: everything in finalize() and publish(); the same bits
    int zero_stage = 0;
  };
  // stage 1: the model's partition must have been made with `shards` = the communicator's size.
  Reducer(FlatModel& model, comm::Communicator& communicator, Options options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // All ranks get rank 0's parameters.
  void broadcast_parameters();

  // Before the backward pass of each micro-batch. last: gradients are reduced in this pass (otherwise only accumulated).
  void begin_backward(bool last);
  // After the last backward pass: owned gradients are whole (with stage 0 on all ranks alike); the next step starts from nothing.
  void finalize();
  // After the optimizer step: every rank's parameters become whole again. Parameter::use() waits for what it needs.
  void publish();

  // By bucket. Constant while the layout is.
  const std::vector<OwnedRange>& owned() const { return owned_; }
  bool shards_optimizer() const { return options_.zero_stage > 0; }

  // After the first finalize(): rebuilds the buckets in arrival order and returns the old layout; later nothing. Collective.
  std::optional<Partition> rebuild_once();

 private:
  void find_owned();
  void completed(Parameter& parameter);
  void launch_ready();
  void launch(int bucket);
  std::vector<int> arrival_order_of_rank0();

  FlatModel& model_;
  comm::Communicator& communicator_;
  const Options options_;
  std::vector<OwnedRange> owned_;
  bool reducing_ = false, rebuilt_ = false;
  std::vector<int> missing_;   // by bucket: parameters that have not reported
  int next_bucket_ = 0;        // first bucket not launched
  std::vector<int> arrivals_;  // parameter indices, recorded until the rebuild
  std::vector<comm::WorkPtr> works_;
};

}  // namespace muster::sharding
