#include "comm/control/leader.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/base/error.h"

namespace muster::comm {
namespace {

using Type = ControlMessage::Type;

std::vector<int> missing_ranks(const std::vector<std::optional<std::string>>& given) {
  std::vector<int> missing;
  for (size_t rank = 0; rank < given.size(); ++rank) {
    if (!given[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

}  // namespace

Leader::Leader(int world_size, ControlTiming timing, Time now, Send send)
    : world_size_(world_size), timing_(timing), send_(std::move(send)), members_(world_size), given_(world_size) {
  for (auto& member : members_) member.heard = now;
}

void Leader::on_message(int rank, const ControlMessage& message, Time now) {
  if (rank < 0 || rank >= world_size_ || ended_) return;
  Member& member = members_[rank];
  member.heard = now;
  if (member.status == Status::kAbsent) {
    member.status = Status::kHere;
    if (cause_) send_(rank, verdict(Type::kStop));  // it joins a job that is being stopped
  }
  switch (message.type) {
    case Type::kHello: member.host = message.text; break;
    case Type::kGive: on_give(rank, message, now); break;
    case Type::kFailure: on_failure({rank, message.number, message.text}, message.other == 1, now); break;
    case Type::kGone: on_gone(rank, message.number, now); break;
    default: break;
  }
}

void Leader::on_give(int rank, const ControlMessage& message, Time now) {
  if (cause_) return;
  if (message.number != sequence_ || given_[rank]) {
    on_failure({rank, kExitInternal, fmt::format("is in exchange #{}, the others are in #{}", message.number, sequence_)}, true,
               now);
    return;
  }
  given_[rank] = message.text;
  ++arrived_;
  const auto deadline = now + milliseconds(std::clamp<int64_t>(message.other, 0, 86'400'000));
  round_deadline_ = round_deadline_ ? std::min(*round_deadline_, deadline) : deadline;
  if (!round_refused_.empty()) return refuse_round();
  if (arrived_ < world_size_) return check_stragglers(now);
  ControlMessage table{Type::kTable, sequence_, 0, "", {}};
  for (auto& one : given_) table.table.push_back(std::move(*one));
  given_.assign(world_size_, std::nullopt);
  arrived_ = 0;
  round_deadline_.reset();
  ++sequence_;
  send_all(table);
}

// The deadline has passed: those who are here hear who is not, and so does everyone who comes later.
void Leader::refuse_round() {
  const auto missing = missing_ranks(given_);
  if (round_refused_.empty())
    round_refused_ = fmt::format("did not arrive before the deadline: rank {}", fmt::join(missing, " "));
  const ControlMessage answer{Type::kMissing, sequence_, missing.empty() ? -1 : missing[0], round_refused_, {}};
  for (int rank = 0; rank < world_size_; ++rank) {
    if (given_[rank]) send_(rank, answer);
  }
}

// A worker that ended well while others wait for it would leave them waiting until their deadline.
void Leader::check_stragglers(Time now) {
  if (arrived_ == 0 || cause_ || pending_) return;
  const auto waiting = std::find_if(given_.begin(), given_.end(), [](const auto& one) { return one.has_value(); });
  for (int rank = 0; rank < world_size_; ++rank) {
    if (members_[rank].status != Status::kGone || given_[rank]) continue;
    on_failure({rank, kExitInternal,
                fmt::format("worker ended (exit code 0) before exchange #{}, in which rank {} waits for it", sequence_,
                            waiting - given_.begin())},
               true, now);
    return;
  }
}

void Leader::on_failure(const Cause& cause, bool primary, Time now) {
  if (cause_) return;
  if (primary) return decide(cause, now);
  if (pending_) return;
  pending_ = cause;
  pending_until_ = now + timing_.primary;
}

void Leader::on_gone(int rank, int64_t exit_code, Time now) {
  members_[rank].status = Status::kGone;
  if (exit_code == 0) check_stragglers(now);
  end_if_all_gone();
}

void Leader::on_tick(Time now) {
  if (ended_) return;
  check_members(now);
  check_pending(now);
  if (!cause_ && round_deadline_ && now >= *round_deadline_ && round_refused_.empty()) refuse_round();
  if (cause_ && now >= shutdown_at_) return end();
  send_all({Type::kBeat, 0, 0, "", {}});
}

void Leader::check_members(Time now) {
  for (int rank = 0; rank < world_size_; ++rank) {
    Member& member = members_[rank];
    const bool here = member.status == Status::kHere || member.status == Status::kGone;
    const auto limit = here ? timing_.silence : timing_.join;
    if (member.status == Status::kLost || now - member.heard < limit) continue;
    member.status = Status::kLost;
    on_failure({rank, kExitPeer,
                here ? fmt::format("its agent is lost: no sign of life for {:.1f} s; the agent or its node is dead or stopped",
                                   limit.count() / 1e3)
                     : fmt::format("its agent did not join within {} s", limit.count() / 1000)},
               true, now);
    end_if_all_gone();
  }
}

// A lost agent is noticed later than its peers notice the lost worker: as long as a member is suspiciously silent, wait.
void Leader::check_pending(Time now) {
  if (!pending_ || cause_ || now < pending_until_) return;
  const bool doubt = std::any_of(members_.begin(), members_.end(),
                                 [&](const Member& m) { return m.status == Status::kHere && now - m.heard > 2 * timing_.beat; });
  if (!doubt) decide(*pending_, now);
}

void Leader::forgive(Clock::duration gap) {
  for (auto& member : members_) member.heard += gap;
  pending_until_ += gap;
}

void Leader::decide(const Cause& cause, Time now) {
  cause_ = cause;
  shutdown_at_ = now + timing_.shutdown;
  send_all(verdict(Type::kStop));
}

void Leader::end_if_all_gone() {
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const Member& m) { return m.status == Status::kGone || m.status == Status::kLost; });
  if (!all || ended_) return;
  if (!cause_ && pending_) cause_ = pending_;
  end();
}

void Leader::end() {
  ended_ = true;
  send_all(verdict(Type::kEnd));
}

ControlMessage Leader::verdict(Type type) const {
  if (!cause_) return {type, 0, -1, "", {}};
  const std::string& host = members_[cause_->rank].host;
  return {type,
          cause_->exit_code,
          cause_->rank,
          fmt::format("rank {}{}: {}", cause_->rank, host.empty() ? "" : " on " + host, cause_->line),
          {}};
}

void Leader::send_all(const ControlMessage& message) {
  for (int rank = 0; rank < world_size_; ++rank) {
    if (members_[rank].status != Status::kAbsent) send_(rank, message);
  }
}

}  // namespace muster::comm
