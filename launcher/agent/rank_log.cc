#include "launcher/agent/rank_log.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include <fmt/chrono.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

constexpr size_t kLongestLine = 1 << 20;

void pass_on(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n <= 0) return;  // nobody reads any more
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

RankLog::~RankLog() {
  flush();
  if (file_) std::fclose(file_);
}

void RankLog::open(const std::string& run_dir, int rank) {
  rank_ = rank;
  std::error_code error;
  std::filesystem::create_directories(run_dir + "/logs", error);
  path_ = fmt::format("{}/logs/rank-{}.log", run_dir, rank);
  file_ = std::fopen(path_.c_str(), "ae");
  if (!file_) refuse("run_dir: cannot write {}: {}", path_, std::strerror(errno));
  std::fwrite(before_open_.data(), 1, before_open_.size(), file_);
}

void RankLog::add_stdout(std::string_view bytes) {
  if (rank_ == 0) pass_on(STDOUT_FILENO, bytes);
  add(stdout_pending_, bytes, false);
}

void RankLog::add_stderr(std::string_view bytes) { add(stderr_pending_, bytes, true); }

void RankLog::flush() {
  if (!stdout_pending_.empty()) add(stdout_pending_, "\n", false);
  if (!stderr_pending_.empty()) add(stderr_pending_, "\n", true);
  if (file_) std::fflush(file_);
}

void RankLog::add(std::string& pending, std::string_view bytes, bool is_stderr) {
  pending += bytes;
  size_t begin = 0;
  for (size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = pending.substr(begin, end - begin);
    if (is_stderr) show_stderr(line);
    write_line(line);
  }
  pending.erase(0, begin);
  if (const size_t overwritten = pending.rfind('\r'); overwritten != std::string::npos) pending.erase(0, overwritten + 1);
  if (pending.size() > kLongestLine) pending.erase(0, pending.size() - kLongestLine);
  if (file_) std::fflush(file_);
}

void RankLog::write_line(const std::string& line) {
  const size_t overwritten = line.rfind('\r');
  std::string text = overwritten == std::string::npos ? line : line.substr(overwritten + 1);
  if (text.starts_with("\033[K")) text.erase(0, 3);
  const std::string entry = fmt::format("{:%H:%M:%S} {}\n", fmt::localtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())), text);
  if (file_) {
    std::fwrite(entry.data(), 1, entry.size(), file_);
  } else {
    before_open_ += entry;
  }
}

void RankLog::show_stderr(const std::string& line) const {
  if (line.find("] error:") != std::string::npos) return;
  if (rank_ == 0) {
    pass_on(STDERR_FILENO, line + "\n");
  } else if (line.find("] warning:") != std::string::npos) {
    pass_on(STDERR_FILENO, fmt::format("[rank {}] {}\n", rank_, line));
  }
}

}  // namespace muster::launcher
