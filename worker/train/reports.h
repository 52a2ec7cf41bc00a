#pragma once
// What the trainer tells about a run. No LibTorch.

#include <cstdint>

namespace muster::worker {

struct StepReport {
  int64_t step = 0;          // steps done, from 1
  double loss = 0;           // mean over all counted tokens of the step
  double grad_norm = 0, lr = 0;
  double loss_scale = 1;     // of fp16; 1 otherwise
  double step_ms = 0;        // mean over the steps since the last report
  double tokens_per_second = 0;
  int64_t peak_memory_bytes = 0;  // of rank 0, so far
};

struct EvaluationReport {
  int64_t step = 0;
  double val_loss = 0, best_val_loss = 0;
};

// Who is told how training goes, on rank 0. Called on the training thread.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_evaluation(const EvaluationReport& report) = 0;
};

}  // namespace muster::worker
