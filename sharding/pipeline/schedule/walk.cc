#include "sharding/pipeline/schedule/walk.h"

#include <map>
#include <queue>

namespace muster::sharding::pipeline {
namespace {

class Walker {
 public:
  Walker(const Schedule& s, const Visit& visit) : schedule_(s), visit_(visit), reached_(s.actions.size()) {}

  std::vector<int> run() {
    for (int rank = 0; rank < static_cast<int>(reached_.size()); ++rank) may_go_on_.push_back(rank);
    while (!may_go_on_.empty()) {
      const int rank = may_go_on_.back();
      may_go_on_.pop_back();
      while (step(rank)) {
      }
    }
    return std::move(reached_);
  }

 private:
  // One action of the rank, unless it is at its end or waits for a message.
  bool step(int rank) {
    const auto& list = schedule_.actions[rank];
    const Place here{rank, reached_[rank]};
    if (here.index == static_cast<int>(list.size())) return false;
    const Action& action = list[here.index];
    Place sent;
    if (is_receive(action.kind)) {
      auto& waiting = in_flight_[channel_of(schedule_, action)];
      if (waiting.empty()) return false;
      sent = waiting.front();
      waiting.pop();
    } else if (is_send(action.kind)) {
      const Channel channel = channel_of(schedule_, action);
      in_flight_[channel].push(here);
      may_go_on_.push_back(channel.to);
    }
    visit_(here, sent);
    ++reached_[rank];
    return true;
  }

  const Schedule& schedule_;
  const Visit& visit_;
  std::vector<int> reached_;    // [rank], index of the next action
  std::vector<int> may_go_on_;  // ranks; some may turn out to wait still
  std::map<Channel, std::queue<Place>> in_flight_;
};

}  // namespace

std::vector<int> walk(const Schedule& schedule, const Visit& visit) { return Walker(schedule, visit).run(); }

}  // namespace muster::sharding::pipeline
