#pragma once
// Child processes that do not outlive their parent.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace muster {

struct Subprocess {
  std::vector<std::string> argv;                   // argv[0]: a path
  std::map<std::string, std::string> environment;  // the whole environment
  std::vector<std::pair<int, int>> descriptors;    // (ours, the child's); others should be close-on-exec
  int signal_at_parents_end = 0;                   // sent to the child when the thread that started it ends; 0: none
};

// Starts the child in a process group of its own (its number is the child's), with no signal blocked or ignored.
// InputError where it cannot be started, with the program's name. Does not wait.
pid_t start(const Subprocess& child);

// How a child ended.
struct Ending {
  int code = 0;    // exit code, or 128 + signal
  int signal = 0;  // 0: it exited
};

// Nothing while it runs. Never blocks.
std::optional<Ending> ending_of(pid_t child);

// "killed by signal 9 (SIGKILL)", "exited with code 7".
std::string describe(const Ending& ending);

// "SIGTERM"
std::string signal_name(int signal);

// The folder of this program's file.
std::string program_folder();
std::string host_name();

// Ends the process with this exit code, come what may, unless it has ended by then. For shutdowns that may hang.
void exit_hard_after(int milliseconds, int exit_code);

}  // namespace muster
