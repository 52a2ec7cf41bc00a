#include "comm/collective/host/shared_wait.h"

#include <thread>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::comm::host {
namespace {

// Spinning pays only while every rank has a core of its own.
int choose_spins(int ranks) { return ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? 1000 : 1; }
constexpr int kYields = 8;
// How long a sleep may last before the peers' health is looked at.
constexpr milliseconds kSleep{20};

int open_process(int pid) {
  if (pid == static_cast<int>(getpid())) return -1;
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

}  // namespace

SharedPath::SharedPath(std::shared_ptr<Session> session, std::unique_ptr<SharedSegment> segment, const std::vector<int>& pids)
    : session_(std::move(session)), segment_(std::move(segment)), rank_(session_->rank), size_(session_->size),
      spins_(choose_spins(size_)), inputs_(size_), outgoing_(size_), incoming_(size_) {
  for (int pid : pids) pidfds_.push_back(open_process(pid));
}

SharedPath::~SharedPath() {
  segment_->state(rank_).closed.store(1, std::memory_order_release);
  segment_->ring_all(rank_, true);
  for (int fd : pidfds_)
    if (fd >= 0) close(fd);
}

void SharedPath::report() {
  Notice& notice = segment_->notice();
  const PeerError::Context fault = session_->fault.get();
  uint32_t none = 0;
  if (notice.state.compare_exchange_strong(none, 1)) {
    notice.culprit = fault.rank >= 0 ? fault.rank : rank_;
    notice.reporter = rank_;
    notice.text[fault.cause.copy(notice.text, sizeof(notice.text) - 1)] = 0;
    notice.state.store(2, std::memory_order_release);
  }
  segment_->ring_all(rank_, true);
}

bool SharedPath::all_arrived(const Arrived& arrived) const {
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && !arrived(rank)) return false;
  return true;
}

void SharedPath::await_slowly(const Operation& operation, const Arrived& arrived) {
  for (int yields = 0; yields < kYields; ++yields) {
    pump();
    if (all_arrived(arrived)) return;
    std::this_thread::yield();
  }
  while (true) {
    segment_->sleep(rank_, kSleep, [&] { return pump() || all_arrived(arrived) || session_->fault.broken(); });
    if (all_arrived(arrived)) return;
    check_health(operation, arrived);
  }
}

void SharedPath::check_health(const Operation& operation, const Arrived& arrived) {
  if (session_->fault.broken()) throw PeerError(session_->fault.as_error_of(operation));
  check_notice(operation);
  check_alive(operation, arrived);
  if (session_->deadline.expired()) give_up(operation, arrived);
}

void SharedPath::check_notice(const Operation& operation) {
  const Notice& notice = segment_->notice();
  if (notice.state.load(std::memory_order_acquire) != 2) return;
  const std::string text(notice.text, strnlen(notice.text, sizeof(notice.text)));
  fail_reported(operation, notice.culprit, notice.reporter, text);
}

// A rank that has left may have published its part before: look at `arrived` again.
void SharedPath::check_alive(const Operation& operation, const Arrived& arrived) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || arrived(rank)) continue;
    const bool closed = segment_->state(rank).closed.load(std::memory_order_acquire) != 0;
    if (!closed && !process_ended(rank)) continue;
    pump();
    if (arrived(rank)) continue;
    fail(operation, rank, closed ? "has closed its communicator" : "its process has ended");
  }
}

bool SharedPath::process_ended(int rank) const {
  if (pidfds_[rank] < 0) return false;
  pollfd query{pidfds_[rank], POLLIN, 0};
  return poll(&query, 1, 0) == 1;
}

void SharedPath::give_up(const Operation& operation, const Arrived& arrived) {
  std::vector<int> late, absent;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || arrived(rank)) continue;
    late.push_back(rank);
    if (segment_->state(rank).entered.load() <= collectives_) absent.push_back(rank);
  }
  fail_late(*session_, operation, late, absent);
}

}  // namespace muster::comm::host
