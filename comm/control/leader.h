#pragma once
// The leader's mind, without sockets and without a clock of its own: messages and time in, messages out.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/base/deadline.h"
#include "comm/control/control_message.h"

namespace muster::comm {

struct ControlTiming {
  milliseconds join{60'000};    // from the leader's start to a member's first word
  milliseconds beat{200};       // between signs of life
  milliseconds silence{1500};   // after which a peer counts as lost
  milliseconds primary{500};    // how long a consequence waits for its cause
  milliseconds shutdown{6000};  // from stop to end, with or without the members
};

// Collects the exchange rounds, judges failures, ends the job. One thread. Never blocks, never throws on a member's message.
class Leader {
 public:
  using Time = Clock::time_point;
  using Send = std::function<void(int rank, const ControlMessage&)>;
  Leader(int world_size, ControlTiming timing, Time now, Send send);

  void on_message(int rank, const ControlMessage& message, Time now);
  void on_tick(Time now);
  // This process itself stood still (it was stopped, or the machine was): nobody is late because of that.
  void forgive(Clock::duration gap);
  bool ended() const { return ended_; }

 private:
  enum class Status { kAbsent, kHere, kGone, kLost };
  struct Member {
    Status status = Status::kAbsent;
    std::string host;
    Time heard;
  };
  struct Cause {
    int rank;
    int64_t exit_code;
    std::string line;
  };

  void on_give(int rank, const ControlMessage& message, Time now);
  void on_failure(const Cause& cause, bool primary, Time now);
  void on_gone(int rank, int64_t exit_code, Time now);
  void refuse_round();
  void check_stragglers(Time now);
  void check_members(Time now);
  void check_pending(Time now);
  void decide(const Cause& cause, Time now);
  void end_if_all_gone();
  void end();
  ControlMessage verdict(ControlMessage::Type type) const;
  void send_all(const ControlMessage& message);

  const int world_size_;
  const ControlTiming timing_;
  const Send send_;
  std::vector<Member> members_;
  // The open round.
  int64_t sequence_ = 0;
  std::vector<std::optional<std::string>> given_;
  int arrived_ = 0;
  std::optional<Time> round_deadline_;
  std::string round_refused_;
  // The end.
  std::optional<Cause> pending_, cause_;
  Time pending_until_, shutdown_at_;
  bool ended_ = false;
};

}  // namespace muster::comm
