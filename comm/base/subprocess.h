#pragma once
// A child process: started with its own process group, ended with this process, polled through a descriptor.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace muster {

// A descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  int get() const { return fd_; }
  void reset();

 private:
  int fd_ = -1;
};

// Descriptors of the child are replaced by these, where not negative.
struct ChildSetup {
  std::vector<std::string> argv;                                  // argv[0]: path
  std::vector<std::pair<std::string, std::string>> environment;   // added to this process's
  int stdin_fd = -1, stdout_fd = -1, stderr_fd = -1;
  int inherited_fd = -1;                                          // stays open in the child under its number
  bool null_stdin = true;
  int death_signal = 0;                                           // sent by the kernel when this thread's process ends
};

struct ExitState {
  int code = 0;    // exit code, where signal is 0
  int signal = 0;
  int as_exit_code() const { return signal ? 128 + signal : code; }
};

// Threads: one. The destructor kills the process group and waits for the child.
class Subprocess {
 public:
  // InputError where the program cannot be started.
  explicit Subprocess(const ChildSetup& setup);
  ~Subprocess();
  Subprocess(Subprocess&&) noexcept = default;

  pid_t pid() const { return pid_; }
  // Readable once the child has ended.
  int poll_fd() const { return pidfd_.get(); }
  // Never blocks.
  std::optional<ExitState> exit_state();
  // To the whole process group; nothing once the child has been waited for.
  void signal_group(int signal);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitState> ended_;
};

// "SIGKILL" for 9; "signal 99" for what has no name.
std::string signal_name(int signal);

// Blocks the given signals for this process and returns a descriptor to read them from.
UniqueFd signal_descriptor(const std::vector<int>& signals);
// The next signal of such a descriptor, 0 where none waits.
int next_signal(int fd);

// The folder of the running program.
std::string program_folder();

// The program of that name in PATH, empty where there is none.
std::string find_in_path(const std::string& name, const char* path);

}  // namespace muster
