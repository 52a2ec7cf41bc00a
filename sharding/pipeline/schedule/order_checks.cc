// Order: within a rank, within a channel, and over all ranks.

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "sharding/pipeline/schedule/checks.h"
#include "sharding/pipeline/schedule/walk.h"

namespace muster::sharding::pipeline {
namespace {

// Order within the ranks. While it looks, a whole backward counts as both of its parts too.
class OrderCheck {
 public:
  explicit OrderCheck(const Schedule& s) : s_(s), seen_(s), gradients_(s.stages()) {}

  MaybeVerdict operator()(int rank, int index, const Action& a) {
    for (const Action& need : needs(a))
      if (!seen_.has(need))
        return wrong_action(s_, rank, index, fmt::format("wanted {} before it, found it after", to_text(written(need))));
    if (a.kind == Kind::kReduce && gradients_[a.stage] != s_.micro_batches)
      return wrong_action(
          s_, rank, index,
          fmt::format("found {} micro-batches' gradients before it, wanted all {}", gradients_[a.stage], s_.micro_batches));
    add(a);
    return {};
  }

 private:
  void add(const Action& a) {
    seen_.add(a);
    if (a.kind == Kind::kBackward) seen_.add({Kind::kBackwardInput, a.stage, a.micro_batch});
    gradients_[a.stage] += a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight;
  }

  // How the schedule itself writes the backward.
  Action written(const Action& need) const {
    const Action both{Kind::kBackward, need.stage, need.micro_batch};
    const auto& list = s_.actions[s_.rank_of_stage[need.stage]];
    const bool whole = need.kind == Kind::kBackwardInput && std::find(list.begin(), list.end(), both) != list.end();
    return whole ? both : need;
  }

  // What must have happened on this rank before.
  std::vector<Action> needs(const Action& a) const {
    const auto here = [&](Kind kind) { return Action{kind, a.stage, a.micro_batch}; };
    switch (a.kind) {
      case Kind::kForward:
        return input_needs(a);
      case Kind::kBackward:
      case Kind::kBackwardInput:
        return gradient_needs(a);
      case Kind::kBackwardWeight:
        return {here(Kind::kBackwardInput)};
      case Kind::kSendActivation:
        return {here(Kind::kForward)};
      case Kind::kSendGradient:
        return {here(Kind::kBackwardInput)};
      default:
        return {};
    }
  }

  std::vector<Action> input_needs(const Action& a) const {
    std::vector<Action> out{{Kind::kUnshard, a.stage, -1}};
    if (crosses_ranks(s_, a.stage, a.stage - 1)) {
      out.push_back({Kind::kRecvActivation, a.stage, a.micro_batch});
    } else if (a.stage > 0) {
      out.push_back({Kind::kForward, a.stage - 1, a.micro_batch});
    }
    return out;
  }

  std::vector<Action> gradient_needs(const Action& a) const {
    std::vector<Action> out{{Kind::kForward, a.stage, a.micro_batch}};
    if (crosses_ranks(s_, a.stage, a.stage + 1)) {
      out.push_back({Kind::kRecvGradient, a.stage, a.micro_batch});
    } else if (a.stage + 1 < s_.stages()) {
      out.push_back({Kind::kBackwardInput, a.stage + 1, a.micro_batch});
    }
    return out;
  }

  const Schedule& s_;
  Seen seen_;
  std::vector<int> gradients_;  // [stage], micro-batches whose weight gradients are there
};

using Messages = std::map<Channel, std::vector<Place>>;

Messages messages(const Schedule& s, bool (*wanted)(Kind)) {
  Messages out;
  first_wrong(s, [&](int rank, int index, const Action& a) -> MaybeVerdict {
    if (wanted(a.kind)) out[channel_of(s, a)].push_back({rank, index});
    return {};
  });
  return out;
}

const Action& at(const Schedule& s, const Place& place) { return s.actions[place.rank][place.index]; }

// Where the message that a receive takes is sent: the first on its channel that no receive before it takes.
std::map<std::pair<int, int>, Place> senders(const Schedule& s) {
  std::map<std::pair<int, int>, Place> out;
  const Messages sent = messages(s, is_send);
  for (const auto& [channel, receives] : messages(s, is_receive))
    for (size_t i = 0; i < receives.size(); ++i) out[{receives[i].rank, receives[i].index}] = sent.at(channel)[i];
  return out;
}

// From a rank that is stuck, along what it waits for, until a rank comes again.
std::vector<Place> cycle_from(const Schedule& s, int rank, const std::vector<int>& reached) {
  const auto sender_of = senders(s);
  std::vector<Place> path;
  const auto met = [&](int r) { return std::find_if(path.begin(), path.end(), [&](const Place& p) { return p.rank == r; }); };
  while (met(rank) == path.end()) {
    path.push_back({rank, reached[rank]});
    rank = sender_of.at({rank, reached[rank]}).rank;
  }
  path.erase(path.begin(), met(rank));
  return path;
}

}  // namespace

MaybeVerdict check_order(const Schedule& s) { return first_wrong(s, OrderCheck(s)); }

MaybeVerdict check_channels(const Schedule& s) {
  for (const auto& [receive, send] : senders(s)) {
    const auto& [rank, index] = receive;
    if (at(s, send) == counterpart(s.actions[rank][index])) continue;
    return wrong_action(
        s, rank, index,
        fmt::format("the message that is due from rank {} is its action {} ({}); wanted them sent and received in one order",
                    send.rank, send.index, to_text(at(s, send))));
  }
  return {};
}

MaybeVerdict check_deadlock(const Schedule& s) {
  const std::vector<int> reached = walk(s, [](Place, Place) {});
  for (int rank = 0; rank < s.ranks; ++rank) {
    if (reached[rank] == static_cast<int>(s.actions[rank].size())) continue;
    const auto cycle = cycle_from(s, rank, reached);
    std::vector<std::string> waits;
    for (size_t i = 1; i < cycle.size(); ++i)
      waits.push_back(
          fmt::format("rank {}, which waits at action {} ({}) for", cycle[i].rank, cycle[i].index, to_text(at(s, cycle[i]))));
    return wrong_action(s, cycle[0].rank, cycle[0].index,
                        fmt::format("deadlock: waits for {} rank {}", fmt::join(waits, " "), cycle[0].rank));
  }
  return {};
}

}  // namespace muster::sharding::pipeline
