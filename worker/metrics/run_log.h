#pragma once

#include <cstdio>
#include <string>

#include "worker/train/reports.h"

namespace muster::worker {

// metrics.jsonl of a run: one object a line, on disk when the call returns (docs/formats.md).
// Threads: one. Failure: InputError where the file cannot be opened or written; nothing is lost silently.
class RunLog {
 public:
  // run_dir: made where it is missing; empty: no file.
  explicit RunLog(const std::string& run_dir);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void write(const StepReport& report);
  void write(const EvaluationReport& report);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace muster::worker
