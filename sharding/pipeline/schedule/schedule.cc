#include "sharding/pipeline/schedule/schedule.h"

#include <cctype>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace muster::sharding::pipeline {
namespace {

constexpr std::pair<Kind, std::string_view> kNames[] = {
    {Kind::kForward, "F"},
    {Kind::kBackward, "B"},
    {Kind::kBackwardInput, "I"},
    {Kind::kBackwardWeight, "W"},
    {Kind::kSendActivation, "SEND_F"},
    {Kind::kRecvActivation, "RECV_F"},
    {Kind::kSendGradient, "SEND_B"},
    {Kind::kRecvGradient, "RECV_B"},
    {Kind::kReduce, "REDUCE_GRAD"},
    {Kind::kUnshard, "UNSHARD"},
};

std::string_view name_of(Kind kind) {
  for (const auto& [k, name] : kNames)
    if (k == kind) return name;
  return "?";
}

bool concerns_step(Kind kind) { return kind == Kind::kReduce || kind == Kind::kUnshard; }

// Takes the digits in front; -1 where there are none or too many.
int take_number(std::string_view& text) {
  size_t digits = 0;
  int value = 0;
  for (; digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])); ++digits) {
    if (digits == 7) return -1;
    value = value * 10 + (text[digits] - '0');
  }
  text.remove_prefix(digits);
  return digits == 0 ? -1 : value;
}

}  // namespace

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> out;
  for (int stage = 0; stage < stages(); ++stage)
    if (rank_of_stage[stage] == rank) out.push_back(stage);
  return out;
}

bool is_send(Kind kind) { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
bool is_receive(Kind kind) { return kind == Kind::kRecvActivation || kind == Kind::kRecvGradient; }
bool is_message(Kind kind) { return is_send(kind) || is_receive(kind); }

int peer_stage(const Action& message) {
  const bool after = message.kind == Kind::kSendActivation || message.kind == Kind::kRecvGradient;
  return message.stage + (after ? 1 : -1);
}

Channel channel_of(const Schedule& schedule, const Action& message) {
  const int here = schedule.rank_of_stage[message.stage], there = schedule.rank_of_stage[peer_stage(message)];
  const bool gradients = message.kind == Kind::kSendGradient || message.kind == Kind::kRecvGradient;
  return is_send(message.kind) ? Channel{here, there, gradients} : Channel{there, here, gradients};
}

Action counterpart(const Action& message) {
  const Kind kind = message.kind == Kind::kSendActivation   ? Kind::kRecvActivation
                    : message.kind == Kind::kRecvActivation ? Kind::kSendActivation
                    : message.kind == Kind::kSendGradient   ? Kind::kRecvGradient
                                                            : Kind::kSendGradient;
  return {kind, peer_stage(message), message.micro_batch};
}

std::vector<Channel> channels(const Schedule& schedule) {
  std::set<Channel> used;
  for (int stage = 0; stage + 1 < schedule.stages(); ++stage) {
    const int here = schedule.rank_of_stage[stage], after = schedule.rank_of_stage[stage + 1];
    if (here == after) continue;
    used.insert({here, after, false});
    used.insert({after, here, true});
  }
  return {used.begin(), used.end()};
}

std::string to_text(const Action& action) {
  const std::string head = fmt::format("{}{}", action.stage, name_of(action.kind));
  return concerns_step(action.kind) ? head : head + std::to_string(action.micro_batch);
}

bool parse_action(std::string_view text, Action& action) {
  const int stage = take_number(text);
  const size_t letters = text.find_first_of("0123456789");
  const std::string_view name = text.substr(0, letters);
  text.remove_prefix(name.size());
  for (const auto& [kind, known] : kNames) {
    if (stage < 0 || name != known) continue;
    action = {kind, stage, concerns_step(kind) ? -1 : take_number(text)};
    return text.empty() && (concerns_step(kind) || action.micro_batch >= 0);
  }
  return false;
}

}  // namespace muster::sharding::pipeline
