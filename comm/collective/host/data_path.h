#pragma once
// The seam between the communicator and the way its bytes travel.

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/base/deadline.h"
#include "comm/collective/host/operation.h"

namespace muster::comm::host {

// The first thing that went wrong with a communicator. Any thread.
class Fault {
 public:
  // Returns whether this one is the first.
  bool set(PeerError::Context context);
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Only when broken.
  PeerError::Context get() const;
  // The same fault as the error of `operation`.
  PeerError::Context as_error_of(const Operation& operation) const;

 private:
  mutable std::mutex mutex_;
  std::optional<PeerError::Context> context_;
  std::atomic<bool> broken_{false};
};

// The deadline of the running operation; another thread may bring it forward.
class SharedDeadline {
 public:
  void set(Clock::time_point at) { at_.store(at.time_since_epoch().count(), std::memory_order_relaxed); }
  void bring_forward(Clock::time_point at);
  bool expired() const { return Clock::now().time_since_epoch().count() >= at_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Clock::rep> at_{0};
};

// What a path shares with the communicator that owns it and outlives it.
struct Session {
  std::string name;
  milliseconds timeout{0};
  int rank = 0;
  int size = 1;
  Fault fault;
  SharedDeadline deadline;
};

// The deadline has passed while waiting for the ranks in `late`; of these, `absent` have not even called the operation.
[[noreturn]] void fail_late(const Session& session, const Operation& operation, const std::vector<int>& late,
                            const std::vector<int>& absent);
// A peer has told that `culprit` is at fault.
[[noreturn]] void fail_reported(const Operation& operation, int culprit, int reporter, const std::string& text);

// Moves the bytes of operations between ranks.
//
// Threads: run and report from one thread at a time; interrupt from any. Failure: run throws PeerError; the communicator then
// sets the session's fault, calls report, and calls run no more. Blocking: run until its operations are done, the session's
// deadline passes, its fault is set or a peer reports one; it notices each of these within 50 ms.
class DataPath {
 public:
  virtual ~DataPath() = default;
  virtual std::string_view name() const = 0;
  // Operations that must not wait for each other: point-to-point calls make progress while the collectives run in order.
  virtual void run(std::span<const Operation> operations) = 0;
  // Makes a running `run` look at the session's fault at once.
  virtual void interrupt() = 0;
  // Tells the connected peers about the session's fault.
  virtual void report() = 0;
};

}  // namespace muster::comm::host
