#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "sharding/data_parallel/data_parallel.h"
#include "worker/data/batch_loader.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"
#include "worker/optim/optimizer.h"
#include "worker/train/reports.h"
#include "worker/train/training_step.h"

namespace muster::worker {

// One rank's training, from initial weights to the last step.
//
// Threads: one. Ownership: everything given must outlive it. Collective: all ranks construct it and call run() alike.
// Failure: InputError (models differ between ranks), PeerError.
class Trainer {
 public:
  Trainer(const RunConfig& config, const Dataset& data, comm::Rendezvous& rendezvous, comm::Communicator& communicator, at::Device device);

  // observer: may be null (ranks other than 0).
  void run(Observer* observer);

  Model& model() { return *model_; }
  sharding::DataParallel& parallel() { return *parallel_; }
  const sharding::FlatModel& flat() const { return parallel_->flat(); }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  void train_step(int64_t step, Observer* observer);
  void report(int64_t step, const StepOutcome& outcome, Observer& observer);
  void evaluate(int64_t steps_done, Observer* observer);

  const RunConfig& config_;
  const comm::Place place_;
  const at::Device device_;
  const Dataset& data_;
  BatchLoader loader_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<sharding::Groups> groups_;
  std::unique_ptr<sharding::DataParallel> parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<TrainingStep> training_step_;
  int64_t reported_steps_ = 0;
  Clock::time_point reported_at_;
  double best_val_loss_;
};

}  // namespace muster::worker
