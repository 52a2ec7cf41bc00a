#include "comm/collective/host/data_path.h"

#include <fmt/ranges.h>

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

void fail_late(const Session& session, const Operation& operation, const std::vector<int>& late, const std::vector<int>& absent) {
  const std::string patience = fmt::format("within {:.1f} s", std::chrono::duration<double>(session.timeout).count());
  if (late.empty()) fail(operation, -1, fmt::format("not done {}", patience));
  if (operation.point_to_point()) fail(operation, late[0], fmt::format("no matching call {}", patience));
  if (!absent.empty()) fail(operation, absent[0], fmt::format("did not arrive {}: rank {}", patience, fmt::join(absent, ", ")));
  fail(operation, late[0], fmt::format("stopped in the middle, nothing more {}: rank {}", patience, fmt::join(late, ", ")));
}

void fail_reported(const Operation& operation, int culprit, int reporter, const std::string& text) {
  fail(operation, culprit, culprit == reporter ? text : fmt::format("{} (reported by rank {})", text, reporter));
}

}  // namespace muster::comm::host
