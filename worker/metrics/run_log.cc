#include "worker/metrics/run_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "comm/base/error.h"

namespace muster::worker {

RunLog::RunLog(const std::string& run_dir) {
  if (run_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(run_dir, error);
  path_ = run_dir + "/metrics.jsonl";
  file_ = std::fopen(path_.c_str(), "ae");
  if (!file_) refuse("{}: cannot open for writing: {}", path_, std::strerror(errno));
}

RunLog::~RunLog() {
  if (file_) std::fclose(file_);
}

void RunLog::write(const StepReport& r) {
  nlohmann::ordered_json row{{"step", r.step},
                             {"loss", r.loss},
                             {"tokens_per_second", std::round(r.tokens_per_second)},
                             {"step_ms", r.step_ms},
                             {"lr", r.lr},
                             {"grad_norm", r.grad_norm},
                             {"peak_memory_bytes", r.peak_memory_bytes}};
  if (r.loss_scale != 1) row["loss_scale"] = r.loss_scale;
  write_line(row.dump());
}

void RunLog::write(const EvaluationReport& r) {
  write_line(nlohmann::ordered_json{{"step", r.step}, {"val_loss", r.val_loss}}.dump());
}

void RunLog::write_line(const std::string& line) {
  if (!file_) return;
  if (std::fprintf(file_, "%s\n", line.c_str()) < 0 || std::fflush(file_) != 0)
    refuse("{}: cannot write: {}; free some space", path_, std::strerror(errno));
}

}  // namespace muster::worker
