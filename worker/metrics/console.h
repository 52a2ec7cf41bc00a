#pragma once

#include <string>

#include "worker/config/run_config.h"
#include "worker/metrics/run_log.h"

namespace muster::worker {

// "step 120/2000  loss 2.1034  lr 9.9e-04  grad 1.21  12.1k tok/s  31.4 ms/step  ETA 1m02s"
std::string progress_line(const StepReport& report, int64_t train_iters);

// Shows a run on stdout and writes metrics.jsonl. On a terminal (MUSTER_TTY=1) one live line, else a line a report.
class Console : public Observer {
 public:
  explicit Console(const RunConfig& config);
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

 private:
  void print(const std::string& line, bool stays);

  const int64_t train_iters_;
  const bool live_;
  bool line_open_ = false;
  RunLog log_;
};

}  // namespace muster::worker
