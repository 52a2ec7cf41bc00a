#pragma once

#include <string>
#include <vector>

#include "comm/base/subprocess.h"
#include "comm/control/message.h"

namespace muster::launcher {

// The worker of this agent: its process, its link and its output. Threads: one. Nothing blocks.
class WorkerProcess {
 public:
  // InputError where the program is missing.
  explicit WorkerProcess(const std::vector<std::string>& argv);

  Subprocess& process() { return process_; }
  int link_fd() const { return link_.get(); }
  int stdout_fd() const { return stdout_.get(); }
  int stderr_fd() const { return stderr_.get(); }

  void send(const comm::Message& message);
  // Messages that have arrived; a worker that breaks the format is cut off.
  std::vector<comm::Message> receive();
  // What the worker printed; a descriptor is closed at its end.
  std::string read_stdout() { return read(stdout_); }
  std::string read_stderr() { return read(stderr_); }

 private:
  struct Ends {
    UniqueFd mine, child;
  };
  WorkerProcess(const std::vector<std::string>& argv, Ends link, Ends out, Ends err);
  static Ends socket_ends();
  static Ends pipe_ends();
  static std::string read(UniqueFd& fd);

  UniqueFd link_, stdout_, stderr_;
  comm::MessageStream stream_;
  Subprocess process_;
};

}  // namespace muster::launcher
