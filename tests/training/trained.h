#pragma once
// A small training over N ranks as threads, and what came out.

#include <map>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>

#include "tests/training/delayed.h"
#include "tests/training/ranks.h"

namespace muster::worker::testing {

class LossRecorder : public Observer {
 public:
  void on_step(const StepReport& report) override { losses.push_back(report.loss), norms.push_back(report.grad_norm); }
  void on_evaluation(const EvaluationReport& report) override { val_loss = report.val_loss; }
  std::vector<double> losses, norms;
  double val_loss = 0;
};

struct Trained {
  std::map<std::string, at::Tensor> parameters;  // of rank 0
  bool ranks_agree = true;                       // to the last bit
  std::vector<double> losses, norms;
  double val_loss = 0;
};

// delayed: the communicator of all ranks (which stages 1 and 2 shard over) starts and ends everything late.
inline Trained train(int ranks, const RunConfig& config, bool delayed = false) {
  const Dataset data = hashed_dataset();
  Trained result;
  std::vector<std::map<std::string, at::Tensor>> all(ranks);
  run_ranks(ranks, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
    LossRecorder recorder;
    DelayedCommunicator late(communicator, static_cast<unsigned>(communicator.rank()));
    Trainer trainer(config, data, rendezvous, delayed ? late : communicator, at::Device(at::kCPU));
    trainer.run(communicator.rank() == 0 ? &recorder : nullptr);
    trainer.parallel().visit([&](const sharding::Parameter& p) { all[communicator.rank()][p.name] = p.tensor.detach().clone(); });
    if (communicator.rank() == 0) result.losses = recorder.losses, result.norms = recorder.norms, result.val_loss = recorder.val_loss;
  });
  result.parameters = all[0];
  for (const auto& [name, tensor] : all[0]) {
    for (int r = 1; r < ranks; ++r) result.ranks_agree &= at::equal(tensor, all[r].at(name));
  }
  return result;
}

inline double largest_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a.parameters) worst = std::max(worst, tensor.sub(b.parameters.at(name)).abs().max().item<double>());
  return worst;
}

inline bool bit_equal(const Trained& a, const Trained& b) {
  for (const auto& [name, tensor] : a.parameters) {
    if (!at::equal(tensor, b.parameters.at(name))) return false;
  }
  return a.losses == b.losses;
}

}  // namespace muster::worker::testing
