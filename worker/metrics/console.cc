#include "worker/metrics/console.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace muster::worker {
namespace {

std::string human_rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  return per_second >= 1e3 ? fmt::format("{:.1f}k", per_second / 1e3) : fmt::format("{:.0f}", per_second);
}

std::string human_time(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return s >= 60 ? fmt::format("{}m{:02}s", s / 60, s % 60) : fmt::format("{}s", s);
}

bool on_terminal() {
  const char* tty = std::getenv("MUSTER_TTY");
  return tty && std::strcmp(tty, "1") == 0;
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int n = columns ? std::atoi(columns) : 0;
  return n > 0 ? n : 80;
}

constexpr int kGrad = 3, kStepTime = 5, kRate = 2, kTokens = 4, kEta = 6;  // places of parts in the line, least important first

}  // namespace

std::string progress_line(const StepReport& r, int64_t train_iters, int columns) {
  const std::string total = std::to_string(train_iters);
  std::vector<std::string> parts = {
      fmt::format("step {:>{}}/{}", r.step, total.size(), total),
      fmt::format("loss {:.4f}", r.loss),
      fmt::format("lr {:.2e}", r.lr),
      fmt::format("grad {:.3g}", r.grad_norm),
      fmt::format("{} tok/s", human_rate(r.tokens_per_second)),
      fmt::format("{:.2f} ms/step", r.step_ms),
      fmt::format("ETA {}", human_time(static_cast<double>(train_iters - r.step) * r.step_ms / 1e3))};
  const auto line = [&] {
    std::string out;
    for (const auto& part : parts) out += (part.empty() || out.empty() ? "" : "  ") + part;
    return out;
  };
  if (columns == 0) return line();
  for (const int part : {kGrad, kStepTime, kRate, kTokens, kEta}) {
    if (line().size() < static_cast<size_t>(columns)) break;
    parts[part].clear();
  }
  return line().substr(0, columns - 1);
}

Console::Console(const RunConfig& config) : train_iters_(config.train_iters), live_(on_terminal()), log_(config.run_dir) {}

Console::~Console() {
  if (line_open_) std::printf("\n");
}

void Console::on_step(const StepReport& report) {
  log_.write(report);
  print(progress_line(report, train_iters_, live_ ? terminal_columns() : 0), !live_ || report.step == train_iters_);
}

void Console::on_evaluation(const EvaluationReport& report) {
  log_.write(report);
  print(fmt::format("step {}/{}  validation loss {:.4f} (best {:.4f})", report.step, train_iters_, report.val_loss,
                    report.best_val_loss),
        true);
}

// stays: the line ends with a newline; otherwise the next one is written over it.
void Console::print(const std::string& line, bool stays) {
  std::printf("%s%s%s", line_open_ ? "\r\033[K" : "", line.c_str(), stays ? "\n" : "");
  std::fflush(stdout);
  line_open_ = !stays;
}

}  // namespace muster::worker
