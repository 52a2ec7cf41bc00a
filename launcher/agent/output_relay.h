#pragma once

#include <atomic>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/deadline.h"

namespace muster::launcher {

// Takes a worker's stdout and stderr: everything goes to the log file, each line with its time. Rank 0's stdout passes on as
// it is, at once; of stderr, rank 0's lines, of the others warnings and errors behind "[rank N] ". An error line is held
// back for a moment: where it turns out to be the failure that the job reports anyway, it is not shown twice.
//
// Threads: a thread of its own, since a terminal may block; the public methods may be called from the agent's thread.
class OutputRelay {
 public:
  // log_path may be empty: no file. InputError where it cannot be written.
  OutputRelay(int rank, const std::string& log_path);
  ~OutputRelay();

  // The child's ends, until child_started() closes them here.
  int child_stdout() const { return pipes_[0].theirs; }
  int child_stderr() const { return pipes_[1].theirs; }
  void child_started();

  // The worker reported this line as its failure.
  void reported(const std::string& line);
  // The job is being stopped: what workers complain about now is no news.
  void mute();
  // Takes what is left: until the end of both streams or the deadline.
  void finish(Deadline deadline);

 private:
  struct Pipe {
    int ours = -1, theirs = -1;
    std::string line;  // what has no newline yet
  };
  struct Held {
    std::string line;
    Clock::time_point until;
  };

  void run();
  bool take(Pipe& pipe, bool is_stderr);
  void add(Pipe& pipe, bool is_stderr, std::string_view bytes);
  void end_line(std::string& line, bool is_stderr);
  void log(std::string_view line);
  void show(const std::string& line);
  void show_held(bool all);

  const int rank_;
  const bool on_terminal_;
  bool live_line_ = false;  // the cursor stands behind a line that was to be written over
  std::ofstream log_;
  Pipe pipes_[2];
  std::atomic<bool> finishing_{false};
  std::atomic<Clock::time_point> finish_at_;
  std::mutex mutex_;  // guards held_, reported_, muted_
  std::vector<Held> held_;
  std::string reported_;
  bool muted_ = false;
  std::thread thread_;
};

}  // namespace muster::launcher
