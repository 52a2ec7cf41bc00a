#include "comm/collective/host/data_path.h"

namespace muster::comm::host {

bool Fault::set(PeerError::Context context) {
  std::lock_guard lock(mutex_);
  if (context_) return false;
  context_ = std::move(context);
  broken_.store(true, std::memory_order_release);
  return true;
}

PeerError::Context Fault::get() const {
  std::lock_guard lock(mutex_);
  return *context_;
}

PeerError::Context Fault::as_error_of(const Operation& operation) const {
  const PeerError::Context first = get();
  return context_of(operation, first.rank, first.cause);
}

void SharedDeadline::bring_forward(Clock::time_point at) {
  const Clock::rep wanted = at.time_since_epoch().count();
  Clock::rep now = at_.load(std::memory_order_relaxed);
  while (wanted < now && !at_.compare_exchange_weak(now, wanted, std::memory_order_relaxed)) {
  }
}

}  // namespace muster::comm::host
