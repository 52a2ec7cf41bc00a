#include "comm/base/subprocess.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Everything that the child needs, made before the fork: between vfork and exec nothing may allocate.
struct Prepared {
  std::vector<std::string> argv, environment;
  std::vector<char*> argv_pointers, environment_pointers;
  const std::vector<std::pair<int, int>>& descriptors;
  int signal_at_parents_end;
  pid_t parent;
  volatile int error = 0;  // written by the child in our memory
};

void clear_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) std::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// dup2 clears close-on-exec only where the numbers differ.
bool place_descriptor(int ours, int theirs) {
  if (ours == theirs) return fcntl(ours, F_SETFD, 0) == 0;
  return dup2(ours, theirs) >= 0;
}

[[noreturn]] void become(Prepared& p) {
  setpgid(0, 0);
  if (p.signal_at_parents_end != 0) prctl(PR_SET_PDEATHSIG, p.signal_at_parents_end);
  bool good = getppid() == p.parent;
  for (const auto& [ours, theirs] : p.descriptors) good = good && place_descriptor(ours, theirs);
  clear_signals();
  if (good) execve(p.argv_pointers[0], p.argv_pointers.data(), p.environment_pointers.data());
  p.error = errno ? errno : ESRCH;
  _exit(127);
}

}  // namespace

pid_t start(const Subprocess& child) {
  Prepared p{child.argv, {}, {}, {}, child.descriptors, child.signal_at_parents_end, getpid()};
  for (const auto& [name, value] : child.environment) p.environment.push_back(name + "=" + value);
  p.argv_pointers = pointers(p.argv);
  p.environment_pointers = pointers(p.environment);
  // All signals wait: a handler must not run in the child while it shares our memory.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // vfork, not fork: an MPI library may forbid fork, and its memory need not be copied. posix_spawn has no parent-death signal.
  const pid_t pid = vfork();
  if (pid == 0) become(p);
  const int error = pid < 0 ? errno : p.error;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid > 0 && error != 0) waitpid(pid, nullptr, 0);
  if (error != 0) refuse("{}: cannot start: {}", child.argv[0], std::strerror(error));
  return pid;
}

std::optional<Ending> ending_of(pid_t child) {
  int status = 0;
  const pid_t got = waitpid(child, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return std::nullopt;
  if (got < 0) return Ending{kExitInternal, 0};
  if (WIFSIGNALED(status)) return Ending{128 + WTERMSIG(status), WTERMSIG(status)};
  return Ending{WEXITSTATUS(status), 0};
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : std::to_string(signal);
}

std::string describe(const Ending& ending) {
  if (ending.signal != 0) return fmt::format("killed by signal {} ({})", ending.signal, signal_name(ending.signal));
  return fmt::format("exited with code {}", ending.code);
}

std::string program_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path().string(); }

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void exit_hard_after(int milliseconds, int exit_code) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    _exit(exit_code);
  }).detach();
}

}  // namespace muster
