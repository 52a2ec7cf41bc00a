#include "comm/base/subprocess.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/error.h"

extern char** environ;

namespace muster {
namespace {

std::vector<std::string> merged_environment(const ChildSetup& setup) {
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e;
    bool replaced = false;
    for (const auto& [name, _] : setup.environment) replaced |= entry.starts_with(name + "=");
    if (!replaced) all.push_back(entry);
  }
  for (const auto& [name, value] : setup.environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

void replace(int fd, int with) {
  if (with >= 0) ::dup2(with, fd);
}

// In the child, after fork: only calls that are safe there.
[[noreturn]] void become(const ChildSetup& setup, char** argv, char** env, pid_t parent, int report_fd) {
  ::setpgid(0, 0);
  if (setup.death_signal) ::prctl(PR_SET_PDEATHSIG, setup.death_signal);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the request above
  if (setup.null_stdin && setup.stdin_fd < 0) replace(0, ::open("/dev/null", O_RDONLY));
  replace(0, setup.stdin_fd);
  replace(1, setup.stdout_fd);
  replace(2, setup.stderr_fd);
  if (setup.inherited_fd >= 0) ::fcntl(setup.inherited_fd, F_SETFD, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv, env);
  const int error = errno;
  if (::write(report_fd, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

}  // namespace

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Subprocess::Subprocess(const ChildSetup& setup) {
  auto argv_text = setup.argv, env_text = merged_environment(setup);
  const auto argv = pointers(argv_text), env = pointers(env_text);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) refuse("{}: cannot start: {}", setup.argv[0], std::strerror(errno));
  const UniqueFd read_end(report[0]);
  UniqueFd write_end(report[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) refuse("{}: cannot start: {}", setup.argv[0], std::strerror(errno));
  if (pid_ == 0) become(setup, argv.data(), env.data(), parent, report[1]);
  ::setpgid(pid_, pid_);
  write_end.reset();
  int error = 0;
  if (::read(read_end.get(), &error, sizeof error) == sizeof error) {
    ::waitpid(pid_, nullptr, 0);
    refuse("{}: cannot start: {}", setup.argv[0], std::strerror(error));
  }
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

Subprocess::~Subprocess() {
  if (pidfd_.get() < 0 || exit_state()) return;  // moved from, or ended
  signal_group(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<ExitState> Subprocess::exit_state() {
  if (ended_) return ended_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ended_ = WIFSIGNALED(status) ? ExitState{0, WTERMSIG(status)} : ExitState{WEXITSTATUS(status), 0};
  return ended_;
}

void Subprocess::signal_group(int signal) {
  // The group outlives its first process, so children that it left behind are reached too.
  ::kill(-pid_, signal);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

UniqueFd signal_descriptor(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int s : signals) ::sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int next_signal(int fd) {
  signalfd_siginfo info;
  return ::read(fd, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

std::string program_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

std::string find_in_path(const std::string& name, const char* path) {
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + name;
    if (!folder.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

}  // namespace muster
