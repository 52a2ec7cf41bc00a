#include "launcher/supervisor.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

constexpr int kTurnMs = 200;
constexpr milliseconds kOthersGrace(5000);  // for agents whose job has ended badly: they hear of it within two seconds
constexpr milliseconds kOrphanGrace(3000);  // for agents whose mpirun was killed to stop their workers
constexpr milliseconds kKillLimit(5000);    // for the kernel to end what was killed

int block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// The fields after the name, which may contain anything, of /proc/PID/stat; 0 where the process is gone.
pid_t parent_of(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t name_end = text.rfind(')');
  char state = 0;
  pid_t parent = 0;
  if (name_end != std::string::npos) std::sscanf(text.c_str() + name_end + 1, " %c %d", &state, &parent);
  return parent;
}

std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos && parent_of(name) == getpid())
      children.push_back(std::stoi(name));
  }
  return children;
}

class Supervisor {
 public:
  explicit Supervisor(milliseconds grace) : grace_(grace), signal_fd_(block_signals()) { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Supervisor() {
    end_orphans(milliseconds(0));
    close(signal_fd_);
  }

  void start_all(const std::vector<Subprocess>& processes) {
    for (const auto& process : processes) running_.push_back(start(process));
  }

  Supervision run() {
    while (std::any_of(running_.begin(), running_.end(), [](pid_t pid) { return pid > 0; })) {
      pollfd wait{signal_fd_, POLLIN, 0};
      poll(&wait, 1, kTurnMs);
      on_signals();
      on_endings();
      if (Clock::now() >= kill_at_) kill_all();
    }
    end_orphans(killing_ ? milliseconds(0) : kOrphanGrace);
    if (result_.interrupted_by != 0) result_.exit_code = 128 + result_.interrupted_by;
    return result_;
  }

 private:
  void on_signals() {
    signalfd_siginfo info;
    while (read(signal_fd_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (result_.interrupted_by != 0) {
        kill_all();
      } else {
        result_.interrupted_by = static_cast<int>(info.ssi_signo);
        stop();
      }
    }
  }

  void on_endings() {
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i] <= 0) continue;
      const auto ending = ending_of(running_[i]);
      if (!ending) continue;
      running_[i] = 0;
      if (ending->code != 0 && result_.first_bad < 0) on_first_bad(static_cast<int>(i), *ending);
    }
  }

  void on_first_bad(int index, const Ending& ending) {
    result_.first_bad = index;
    result_.first_ending = ending;
    result_.exit_code = ending.code;
    kill_at_ = std::min(kill_at_, Clock::now() + std::min(grace_, kOthersGrace));
  }

  void stop() {
    for (const pid_t pid : running_) {
      if (pid > 0) kill(pid, SIGTERM);
    }
    kill_at_ = Clock::now() + grace_;
  }

  void kill_all() {
    killing_ = true;
    for (const pid_t pid : running_) {
      if (pid > 0) kill(-pid, SIGKILL);
    }
  }

  // As sub-reaper this process is the parent of every orphan below it.
  void end_orphans(milliseconds grace) {
    const auto soft = Deadline::after(grace), hard = Deadline::after(grace + kKillLimit);
    while (true) {
      while (waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      const auto children = own_children();
      if (children.empty() || hard.expired()) return;
      for (const pid_t child : children) {
        if (soft.expired()) kill(child, SIGKILL);
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }

  const milliseconds grace_;
  const int signal_fd_;
  std::vector<pid_t> running_;
  Clock::time_point kill_at_ = Clock::time_point::max();
  bool killing_ = false;
  Supervision result_;
};

}  // namespace

Supervision supervise(const std::vector<Subprocess>& processes, milliseconds grace) {
  Supervisor supervisor(grace);
  supervisor.start_all(processes);
  return supervisor.run();
}

}  // namespace muster::launcher
