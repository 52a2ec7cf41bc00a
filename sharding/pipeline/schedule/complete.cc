#include "sharding/pipeline/schedule/complete.h"

#include <algorithm>
#include <map>

namespace muster::sharding::pipeline {
namespace {

using Actions = std::vector<Action>;

template <typename Predicate>
bool any_action(const Schedule& schedule, Predicate predicate) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(),
                     [&](const Actions& list) { return std::any_of(list.begin(), list.end(), predicate); });
}

bool crosses_ranks(const Schedule& s, const Action& message) {
  const int peer = peer_stage(message);
  return peer >= 0 && peer < s.stages() && s.rank_of_stage[peer] != s.rank_of_stage[message.stage];
}

// The send that follows this computation, or the receive that it needs.
bool message_beside(const Schedule& s, const Action& compute, bool send, Action& message) {
  const bool forward = compute.kind == Kind::kForward;
  if (!forward && compute.kind != Kind::kBackward && compute.kind != Kind::kBackwardInput) return false;
  const Kind kind =
      send ? (forward ? Kind::kSendActivation : Kind::kSendGradient) : (forward ? Kind::kRecvActivation : Kind::kRecvGradient);
  message = {kind, compute.stage, compute.micro_batch};
  return crosses_ranks(s, message);
}

std::vector<Actions> with_sends(const Schedule& s) {
  std::vector<Actions> out(s.actions.size());
  for (size_t rank = 0; rank < out.size(); ++rank) {
    for (const Action& action : s.actions[rank]) {
      out[rank].push_back(action);
      Action send;
      if (message_beside(s, action, true, send)) out[rank].push_back(send);
    }
  }
  return out;
}

// The receives of each channel, in the order in which their messages are sent.
std::map<Channel, Actions> receives_in_order(const Schedule& s) {
  std::map<Channel, Actions> out;
  for (const Actions& list : s.actions)
    for (const Action& action : list)
      if (is_send(action.kind)) out[channel_of(s, action)].push_back(counterpart(action));
  return out;
}

using Key = std::pair<Kind, std::pair<int, int>>;
Key key_of(const Action& a) { return {a.kind, {a.stage, a.micro_batch}}; }

// Which place of the list needs the receive.
std::map<Key, size_t> uses_of(const Schedule& s, const Actions& list) {
  std::map<Key, size_t> out;
  Action receive;
  for (size_t i = 0; i < list.size(); ++i)
    if (message_beside(s, list[i], false, receive)) out.emplace(key_of(receive), i);
  return out;
}

// A message is received before its own use and before every later message of its channel. Receiving it early costs nothing:
// the use that it is moved up to needs a message that was sent after it.
void place_receives(Schedule& s, const std::map<Channel, Actions>& receives, int rank) {
  Actions& list = s.actions[rank];
  const auto uses = uses_of(s, list);
  std::vector<Actions> before(list.size());
  for (const auto& [channel, messages] : receives) {
    if (channel.to != rank) continue;
    size_t place = list.size();
    std::vector<std::pair<size_t, Action>> placed;
    for (auto message = messages.rbegin(); message != messages.rend(); ++message) {
      const auto use = uses.find(key_of(*message));
      if (use == uses.end()) continue;
      place = std::min(place, use->second);
      placed.push_back({place, *message});
    }
    for (auto p = placed.rbegin(); p != placed.rend(); ++p) before[p->first].push_back(p->second);
  }
  Actions out;
  for (size_t i = 0; i < list.size(); ++i) {
    out.insert(out.end(), before[i].begin(), before[i].end());
    out.push_back(list[i]);
  }
  list = std::move(out);
}

void add_messages(Schedule& s) {
  s.actions = with_sends(s);
  const auto receives = receives_in_order(s);
  for (int rank = 0; rank < s.ranks; ++rank) place_receives(s, receives, rank);
}

bool ends_gradient(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardWeight; }

void add_reduces(Schedule& s) {
  for (Actions& list : s.actions) {
    std::map<int, size_t> last;  // stage -> place
    for (size_t i = 0; i < list.size(); ++i)
      if (ends_gradient(list[i].kind)) last[list[i].stage] = i;
    Actions out;
    for (size_t i = 0; i < list.size(); ++i) {
      out.push_back(list[i]);
      if (ends_gradient(list[i].kind) && last[list[i].stage] == i) out.push_back({Kind::kReduce, list[i].stage, -1});
    }
    list = std::move(out);
  }
}

void add_unshards(Schedule& s) {
  for (Actions& list : s.actions) {
    std::map<int, bool> seen;
    Actions out;
    for (const Action& action : list) {
      if (action.kind == Kind::kForward && !seen[action.stage]) out.push_back({Kind::kUnshard, action.stage, -1});
      seen[action.stage] |= action.kind == Kind::kForward;
      out.push_back(action);
    }
    list = std::move(out);
  }
}

}  // namespace

void complete(Schedule& s) {
  const bool has_messages = any_action(s, [](const Action& a) { return is_message(a.kind); });
  const bool has_reduces = any_action(s, [](const Action& a) { return a.kind == Kind::kReduce; });
  const bool has_unshards = any_action(s, [](const Action& a) { return a.kind == Kind::kUnshard; });
  if (!has_reduces) add_reduces(s);
  if (!has_unshards) add_unshards(s);
  if (!has_messages) add_messages(s);  // last, so that a gradient is sent before its stage's reduction starts
}

}  // namespace muster::sharding::pipeline
