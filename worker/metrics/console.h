#pragma once

#include <string>

#include "worker/config/run_config.h"
#include "worker/metrics/run_log.h"

namespace muster::worker {

// "step 120/2000  loss 2.1034  lr 9.9e-04  grad 1.21  12.1k tok/s  31.4 ms/step  ETA 1m02s"
// columns: where the line would be longer, the less important parts are left out; 0: any length.
std::string progress_line(const StepReport& report, int64_t train_iters, int columns = 0);

// Shows a run on stdout and writes metrics.jsonl. On a terminal (MUSTER_TTY=1) one live line as wide as $COLUMNS (or 80), since
// stdout may be a pipe that ends at a terminal; else a line a report. Threads: one. Failure: InputError as RunLog.
class Console : public Observer {
 public:
  explicit Console(const RunConfig& config);
  ~Console() override;
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
