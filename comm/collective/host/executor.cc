#include "comm/collective/host/executor.h"

#include "comm/base/log.h"

namespace muster::comm::host {

// How long a wait gives the running operation to say itself who is late, before it throws without a name.
constexpr milliseconds kGrace{2000};

Executor::Executor(std::shared_ptr<Session> session, std::unique_ptr<DataPath> path)
    : session_(std::move(session)), path_(std::move(path)), thread_([this] { serve(); }) {}

Executor::~Executor() {
  size_t unfinished = 0;
  {
    std::lock_guard lock(mutex_);
    unfinished = queue_.size();
    stopping_ = true;
  }
  if (unfinished > 0) abort({session_->rank, "", -1, fmt::format("destroyed with {} operations unfinished", unfinished)});
  work_.notify_all();
  thread_.join();
}

void Executor::submit(TaskPtr task) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  work_.notify_one();
}

void Executor::abort(PeerError::Context why) {
  if (!session_->fault.set(std::move(why))) return;
  path_->interrupt();
  { std::lock_guard lock(mutex_); }  // serve() is either before its test of the fault or asleep
  work_.notify_one();
}

void Executor::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] {
      return !running_ && (!queue_.empty() || stopping_ || (session_->fault.broken() && !reported_));
    });
    if (session_->fault.broken() && !reported_) {
      report_once();
    } else if (!queue_.empty()) {
      run_front(lock, Clock::time_point::max());
    } else {
      return;
    }
  }
}

// With the lock held: nobody may issue or wait while peers are told, which takes microseconds.
void Executor::report_once() {
  if (reported_) return;
  reported_ = true;
  try {
    path_->report();
  } catch (const std::exception& error) {
    log_warn("host collective '{}': cannot tell the other ranks: {}", session_->name, error.what());
  }
}

void Executor::run_front(std::unique_lock<std::mutex>& lock, Clock::time_point latest) {
  const TaskPtr task = queue_.front();
  running_ = true;
  lock.unlock();
  std::optional<PeerError::Context> error = run(*task, latest);
  task->tensors.clear();
  lock.lock();
  running_ = false;
  queue_.pop_front();
  if (error) report_once();
  finish(*task, std::move(error));
  // The progress thread may have been woken while somebody else ran the front.
  if (!queue_.empty() || stopping_ || session_->fault.broken()) work_.notify_one();
}

void Executor::finish(Task& task, std::optional<PeerError::Context> error) {
  task.error = std::move(error);
  task.done.store(true, std::memory_order_release);
  if (waiters_ > 0) changed_.notify_all();
}

std::optional<PeerError::Context> Executor::run(const Task& task, Clock::time_point latest) {
  Fault& fault = session_->fault;
  if (fault.broken()) return fault.as_error_of(task.operations.front());
  session_->deadline.set(std::min(Clock::now() + session_->timeout, latest));
  try {
    path_->run(task.operations);
    return std::nullopt;
  } catch (const PeerError& error) {
    fault.set(error.context());
    return error.context();
  } catch (const std::exception& error) {
    // Peers must not wait for a rank whose transport failed.
    fault.set(context_of(task.operations.front(), session_->rank, error.what()));
    return fault.as_error_of(task.operations.front());
  }
}

void Executor::wait(Task& task, Deadline deadline) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  while (!task.done.load(std::memory_order_acquire)) {
    if (deadline.expired()) {
      session_->deadline.bring_forward(deadline.at());
      if (Clock::now() > deadline.at() + kGrace) break;
    }
    if (!running_ && !queue_.empty()) {
      run_front(lock, deadline.at());
    } else {
      changed_.wait_until(lock, deadline.expired() ? Clock::now() + milliseconds(20) : deadline.at());
    }
  }
  --waiters_;
  if (!task.done) {
    lock.unlock();
    const auto context = context_of(task.operations.front(), -1, "not done when its deadline passed");
    abort(context);
    throw PeerError(context);
  }
  if (task.error) throw PeerError(*task.error);
}

}  // namespace muster::comm::host
