#pragma once
// Walks a pipeline schedule: one rank's stages, micro-batches and messages.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/collective/communicator.h"
#include "sharding/data_parallel/parameter.h"
#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// What the executor asks of a model cut into stages.
class Stages {
 public:
  virtual ~Stages() = default;
  // input: what the stage before gave (a leaf that wants a gradient); undefined for stage 0, which reads the micro-batch itself.
  // Returns the activation, or, in the last stage, the loss (one element).
  virtual at::Tensor forward(int stage, int micro_batch, const at::Tensor& input) = 0;
  // Of one of this rank's stages. A parameter is complete when it has reported in every micro-batch (Reducer::begin_step).
  virtual std::vector<Parameter*> parameters(int stage) = 0;
};

// The two ends of a channel: a communicator of its own and the peer's rank in it.
struct Link {
  comm::Communicator* communicator = nullptr;
  int peer = 0;
};

struct ExecutorOptions {
  std::vector<int64_t> shape;  // of an activation between stages, the same for all micro-batches
  at::TensorOptions tensor;    // dtype and device of it
};

// Receives are posted kAhead messages ahead on their channel; sends are asynchronous. A sent activation is freed, its graph kept for
// the backward pass. Between two stages of one rank the tensor itself is handed over.
//
// Threads: the training thread (and autograd's). Ownership: schedule, stages and communicators must outlive it. Blocking: a receive
// (CPU), and the end of run(). Failure: PeerError. The schedule has been validated.
class Executor {
 public:
  static constexpr size_t kAhead = 2;

  Executor(const Schedule& schedule, int rank, std::map<Channel, Link> links, Stages& stages, ExecutorOptions options);

  // One step's micro-batches. Returns their losses where the last stage is here, else nothing.
  std::vector<at::Tensor> run();
  // The most (micro-batch, stage) pairs that held activations at once in the last run.
  int peak_live() const { return peak_live_; }

 private:
  using Key = std::pair<int, int>;  // stage, micro-batch
  struct Pass {                     // one micro-batch in one stage
    at::Tensor input, output;       // output: until it has been sent
    std::vector<std::function<void()>> deferred;
    std::function<void(const at::Tensor&)> backward;
  };
  struct Posted {
    Key key;
    comm::WorkPtr work;
    at::Tensor buffer;
  };

  void post_receives(const Channel& channel);
  at::Tensor receive(const Action& action);
  void send(const Action& action, const at::Tensor& tensor);
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_weight(const Action& action);
  bool here(int stage) const { return stage >= 0 && stage < schedule_.stages() && schedule_.rank_of_stage[stage] == rank_; }

  const Schedule& schedule_;
  const int rank_;
  const std::map<Channel, Link> links_;
  Stages& stages_;
  const ExecutorOptions options_;
  std::map<Channel, std::deque<Action>> to_receive_;  // not yet posted
  std::map<Channel, std::deque<Posted>> posted_;
  std::map<Key, Pass> passes_;
  std::map<Key, at::Tensor> inputs_, gradients_;  // arrived, or handed over
  std::vector<comm::WorkPtr> sends_;
  std::vector<at::Tensor> losses_;
  int peak_live_ = 0;
};

}  // namespace muster::sharding::pipeline
