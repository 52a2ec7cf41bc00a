#include "launcher/agent/output_relay.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

constexpr milliseconds kHold(400);
constexpr int kPollMs = 10;
constexpr size_t kLongestLine = 64 << 10;  // bytes; longer ones are cut in two

// "12:04:31.123 "
std::string time_prefix() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm local;
  localtime_r(&now.tv_sec, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:03} ", local.tm_hour, local.tm_min, local.tm_sec, now.tv_nsec / 1'000'000);
}

// False where nobody reads any more.
bool write_fully(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      poll(&wait, 1, 100);
    } else if (written < 0 && errno != EINTR) {
      return false;
    } else if (written > 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  return true;
}

// The launcher's word: our own stdout is a pipe of mpirun.
bool stdout_is_terminal() {
  const char* word = std::getenv("MUSTER_TTY");
  return word && std::string_view(word) == "1";
}

bool is_error(const std::string& line) { return line.find("] error:") != std::string::npos; }
bool is_warning(const std::string& line) { return line.find("] warning:") != std::string::npos; }

}  // namespace

OutputRelay::OutputRelay(int rank, const std::string& log_path) : rank_(rank), on_terminal_(stdout_is_terminal()) {
  if (!log_path.empty()) {
    log_.open(log_path, std::ios::trunc);
    if (!log_) refuse("{}: cannot write the log: {}", log_path, std::strerror(errno));
  }
  for (Pipe& pipe : pipes_) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) refuse("cannot make a pipe for the worker's output: {}", std::strerror(errno));
    pipe.ours = ends[0];
    pipe.theirs = ends[1];
    fcntl(pipe.ours, F_SETFL, O_NONBLOCK);
  }
}

OutputRelay::~OutputRelay() {
  finish(Deadline::after(milliseconds(0)));
  for (Pipe& pipe : pipes_) {
    close(pipe.ours);
    if (pipe.theirs >= 0) close(pipe.theirs);
  }
}

void OutputRelay::child_started() {
  for (Pipe& pipe : pipes_) {
    close(pipe.theirs);
    pipe.theirs = -1;
  }
  thread_ = std::thread([this] { run(); });
}

void OutputRelay::reported(const std::string& line) {
  std::lock_guard lock(mutex_);
  reported_ = line.substr(0, line.find('\n'));
  std::erase_if(held_, [&](const Held& held) { return held.line.find(reported_) != std::string::npos; });
}

void OutputRelay::mute() {
  std::lock_guard lock(mutex_);
  muted_ = true;
  held_.clear();
}

void OutputRelay::finish(Deadline deadline) {
  if (!thread_.joinable()) return;
  finish_at_ = deadline.at();
  finishing_ = true;
  thread_.join();
}

// Ends in finish() only: after the end of both streams the agent may still hear what the worker reported.
void OutputRelay::run() {
  bool open[2] = {true, true};
  const auto over = [&] { return finishing_ && ((!open[0] && !open[1]) || Clock::now() >= finish_at_.load()); };
  while (!over()) {
    pollfd waits[2] = {{open[0] ? pipes_[0].ours : -1, POLLIN, 0}, {open[1] ? pipes_[1].ours : -1, POLLIN, 0}};
    poll(waits, 2, kPollMs);
    for (int i = 0; i < 2; ++i) {
      if (waits[i].revents != 0) open[i] = take(pipes_[i], i == 1);
    }
    show_held(false);
    if (log_.is_open()) log_.flush();
  }
  for (int i = 0; i < 2; ++i) end_line(pipes_[i].line, i == 1);
  if (live_line_) write_fully(STDOUT_FILENO, "\n");
  show_held(true);
  if (log_.is_open()) log_.flush();
}

// False at the end of the stream.
bool OutputRelay::take(Pipe& pipe, bool is_stderr) {
  char block[16384];
  const ssize_t got = read(pipe.ours, block, sizeof block);
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  const std::string_view bytes(block, static_cast<size_t>(got));
  if (rank_ == 0 && !is_stderr) {
    write_fully(STDOUT_FILENO, bytes);
    live_line_ = on_terminal_ && bytes.back() != '\n';
  }
  add(pipe, is_stderr, bytes);
  return true;
}

// A live line ends with a carriage return: in the log it is a line as any other.
void OutputRelay::add(Pipe& pipe, bool is_stderr, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    pipe.line.append(bytes.substr(0, end));
    if (end != std::string_view::npos || pipe.line.size() > kLongestLine) end_line(pipe.line, is_stderr);
    if (end == std::string_view::npos) return;
    bytes.remove_prefix(end + 1);
  }
}

void OutputRelay::end_line(std::string& line, bool is_stderr) {
  static constexpr std::string_view kClear = "\033[K";
  if (line.starts_with(kClear)) line.erase(0, kClear.size());
  if (line.empty()) return;
  log(line);
  if (is_stderr) show(line);
  line.clear();
}

void OutputRelay::log(std::string_view line) {
  if (log_.is_open()) log_ << time_prefix() << line << '\n';
}

void OutputRelay::show(const std::string& line) {
  if (rank_ != 0 && !is_error(line) && !is_warning(line)) return;
  const std::string shown = rank_ == 0 ? line : fmt::format("[rank {}] {}", rank_, line);
  if (!is_error(line)) {
    write_fully(STDERR_FILENO, shown + "\n");
    return;
  }
  std::lock_guard lock(mutex_);
  const bool known = !reported_.empty() && line.find(reported_) != std::string::npos;
  if (!muted_ && !known) held_.push_back({shown, Clock::now() + kHold});
}

void OutputRelay::show_held(bool all) {
  std::vector<Held> due;
  {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    const auto first_kept = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return !all && h.until > now; });
    due.assign(held_.begin(), first_kept);
    held_.erase(held_.begin(), first_kept);
  }
  for (const Held& held : due) write_fully(STDERR_FILENO, held.line + "\n");
}

}  // namespace muster::launcher
