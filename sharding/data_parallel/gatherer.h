#pragma once
// Makes parameters whole where they are needed.

#include <vector>

#include "comm/collective/communicator.h"
#include "sharding/data_parallel/flat_model.h"

namespace muster::sharding {

// The units (Parameter::unit) in the order in which a pass needs their values; a unit may come more than once.
struct UnitSchedule {
  std::vector<int> forward, backward;
};

enum class PassKind { kForward, kForwardBackward };

// | stage | after the optimizer step                         | before a parameter's use            |
// | 1, 2  | all-gather of each bucket, overlapping what comes | wait for its bucket                |
// | 3     | -                                                | all-gather of its unit, freed after |
//
// Stage 3: gathers follow the model's schedule on every rank alike, one ahead of use, so a rank that skips a unit still takes part
// in its gather, and a pass ends only when the whole schedule has been gathered. All ranks must run the same number of passes.
// A unit that stands twice in a row is gathered once.
//
// Memory: stage 3 has two whole units at a time.
// Threads: as Parameter. Ownership: model and communicator must outlive it. Blocking: the use of a parameter (CPU). Failure:
// PeerError from that; CheckError where a pass uses a unit that its schedule does not have at that place.
class Gatherer {
 public:
  struct Options {
    bool overlap = true;  // false: no gather runs while other work does; the same bits
  };
  // communicator: the ranks that cut each bucket among them. With stage 3 it must not be the reducer's: the two are used at the same
  // time in an order that differs between ranks.
  Gatherer(FlatModel& model, comm::Communicator& communicator, const UnitSchedule& schedule, Options options);
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  // Before each forward pass, and after the last. begin() ends a pass that is open.
  void begin(PassKind kind);
  void end();
  // After the optimizer step.
  void publish();

 private:
  struct Arrival {
    int bucket = -1;
    comm::WorkPtr work;
    at::Tensor buffer;
  };

  void wait_for_bucket(Parameter& parameter);   // stages 1 and 2
  void advance_to(const Parameter& parameter);  // stage 3
  void step();
  Arrival gather(int bucket);
  void release();

  FlatModel& model_;
  comm::Communicator& communicator_;
  const Options options_;
  std::vector<int> schedules_[2];  // by PassKind: buckets
  std::vector<comm::WorkPtr> arriving_;  // by bucket, stages 1 and 2
  // Stage 3.
  const std::vector<int>* pass_ = nullptr;  // the open pass's schedule
  size_t next_ = 0;                         // place in it: what is gathered or on its way next
  int current_ = -1;                        // bucket that is whole
  at::Tensor current_buffer_;
  Arrival ahead_;
};

}  // namespace muster::sharding
