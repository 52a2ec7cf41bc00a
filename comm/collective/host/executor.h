#pragma once
// Runs the operations of one communicator in the order of their issue.

#include <condition_variable>
#include <deque>
#include <thread>
#include <vector>

#include "comm/collective/host/data_path.h"

namespace muster::comm::host {

// One issue: an operation, or the operations of a group.
struct Task {
  std::vector<Operation> operations;
  std::vector<at::Tensor> tensors;  // kept alive until the task is done
  std::optional<PeerError::Context> error;
  std::atomic<bool> done{false};
};
using TaskPtr = std::shared_ptr<Task>;

// Threads: submit from one thread; wait, abort from any. One progress thread runs tasks; a thread that waits for a task nobody
// runs yet runs it itself, which saves two context switches on small messages.
// Ownership: owns the path. Tasks may outlive it: its destructor fails those that are not done.
class Executor {
 public:
  Executor(std::shared_ptr<Session> session, std::unique_ptr<DataPath> path);
  ~Executor();

  void submit(TaskPtr task);
  // Blocks until the task is done or the deadline passes, which breaks the communicator. Throws the task's PeerError.
  void wait(Task& task, Deadline deadline);
  void abort(PeerError::Context why);
  std::string_view path_name() const { return path_->name(); }

 private:
  void serve();
  void run_front(std::unique_lock<std::mutex>& lock, Clock::time_point latest);
  std::optional<PeerError::Context> run(const Task& task, Clock::time_point latest);
  void report_once();
  void finish(Task& task, std::optional<PeerError::Context> error);

  const std::shared_ptr<Session> session_;
  const std::unique_ptr<DataPath> path_;
  std::mutex mutex_;  // guards all below
  std::condition_variable work_, changed_;
  std::deque<TaskPtr> queue_;
  int waiters_ = 0;
  bool running_ = false;   // somebody runs the front, or reports
  bool reported_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace muster::comm::host
