#include "sharding/pipeline/schedule/validator.h"

#include <algorithm>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/checks.h"
#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

bool whole_step(Kind kind) { return kind == Kind::kReduce || kind == Kind::kUnshard; }

Verdict wrong_schedule(const std::string& what) { return {-1, -1, what}; }

MaybeVerdict check_neighbour(const Schedule& s, int rank, int index, const Action& a) {
  const int peer = peer_stage(a);
  if (peer < 0 || peer >= s.stages()) return wrong_action(s, rank, index, fmt::format("there is no stage {}", peer));
  if (crosses_ranks(s, a.stage, peer)) return {};
  return wrong_action(s, rank, index, fmt::format("stage {} is on this rank too, wanted no message", peer));
}

Verdict lacks(const Schedule& s, const Action& a, const std::string& why) {
  return wrong_rank(s.rank_of_stage[a.stage], fmt::format("found no {}; {}", to_text(a), why));
}

// One micro-batch on one stage: its forward and backward.
MaybeVerdict check_work(const Schedule& s, const Seen& seen, int stage, int i) {
  const Action forward{Kind::kForward, stage, i}, both{Kind::kBackward, stage, i};
  const Action input{Kind::kBackwardInput, stage, i}, weight{Kind::kBackwardWeight, stage, i};
  if (!seen.has(forward)) return lacks(s, forward, "wanted each micro-batch on each stage");
  if (seen.has(both) && (seen.has(input) || seen.has(weight))) {
    const Action& part = seen.has(input) ? input : weight;
    return wrong_rank(s.rank_of_stage[stage],
                      fmt::format("found {} and {}, wanted the whole backward or its parts", to_text(both), to_text(part)));
  }
  if (seen.has(input) && !seen.has(weight)) return lacks(s, weight, "wanted both parts of the backward");
  if (seen.has(weight) && !seen.has(input)) return lacks(s, input, "wanted both parts of the backward");
  if (!seen.has(input) && !seen.has(both)) return lacks(s, both, "wanted each micro-batch on each stage");
  return {};
}

MaybeVerdict check_messages(const Schedule& s, const Seen& seen, int stage, int i) {
  for (const Kind kind : {Kind::kRecvActivation, Kind::kSendActivation, Kind::kRecvGradient, Kind::kSendGradient}) {
    const Action message{kind, stage, i};
    if (!crosses_ranks(s, stage, peer_stage(message)) || seen.has(message)) continue;
    const int peer = s.rank_of_stage[peer_stage(message)];
    const char* does = is_send(kind) ? "waits for it" : "sends it";
    return lacks(s, message, fmt::format("rank {} {} ({})", peer, does, to_text(counterpart(message))));
  }
  return {};
}

MaybeVerdict check_stage(const Schedule& s, const Seen& seen, int stage) {
  for (const Kind kind : {Kind::kUnshard, Kind::kReduce})
    if (!seen.has({kind, stage, -1})) return lacks(s, {kind, stage, -1}, "wanted one a stage");
  for (int i = 0; i < s.micro_batches; ++i) {
    if (const auto verdict = check_work(s, seen, stage, i)) return verdict;
    if (const auto verdict = check_messages(s, seen, stage, i)) return verdict;
  }
  return {};
}

}  // namespace

Verdict wrong_action(const Schedule& s, int rank, int index, const std::string& what) {
  return {rank, index, fmt::format("rank {}, action {} ({}): {}", rank, index, to_text(s.actions[rank][index]), what)};
}

Verdict wrong_rank(int rank, const std::string& what) { return {rank, -1, fmt::format("rank {}: {}", rank, what)}; }

bool crosses_ranks(const Schedule& s, int stage, int peer) {
  return peer >= 0 && peer < s.stages() && s.rank_of_stage[stage] != s.rank_of_stage[peer];
}

MaybeVerdict check_shape(const Schedule& s) {
  try {
    check_size(s.ranks, s.micro_batches, s.chunks);
  } catch (const InputError& error) {
    return wrong_schedule(error.what());
  }
  if (static_cast<int>(s.actions.size()) != s.ranks)
    return wrong_schedule(fmt::format("schedule: found {} lists, wanted one for each of {} ranks", s.actions.size(), s.ranks));
  if (s.stages() != s.ranks * s.chunks)
    return wrong_schedule(fmt::format("schedule: found {} stages, wanted {} ranks x {} chunks", s.stages(), s.ranks, s.chunks));
  std::vector<int> held(s.ranks);
  for (const int rank : s.rank_of_stage)
    if (rank >= 0 && rank < s.ranks) ++held[rank];
  for (int rank = 0; rank < s.ranks; ++rank)
    if (held[rank] != s.chunks) return wrong_rank(rank, fmt::format("found {} stages, wanted {}", held[rank], s.chunks));
  return {};
}

MaybeVerdict check_places(const Schedule& s) {
  return first_wrong(s, [&](int rank, int index, const Action& a) -> MaybeVerdict {
    if (a.stage < 0 || a.stage >= s.stages())
      return wrong_action(s, rank, index, fmt::format("found stage {}, wanted 0 to {}", a.stage, s.stages() - 1));
    if (s.rank_of_stage[a.stage] != rank)
      return wrong_action(s, rank, index, fmt::format("stage {} is on rank {}", a.stage, s.rank_of_stage[a.stage]));
    if (whole_step(a.kind) ? a.micro_batch != -1 : a.micro_batch < 0 || a.micro_batch >= s.micro_batches)
      return wrong_action(s, rank, index,
                          fmt::format("found micro-batch {}, wanted 0 to {}", a.micro_batch, s.micro_batches - 1));
    return is_message(a.kind) ? check_neighbour(s, rank, index, a) : MaybeVerdict();
  });
}

MaybeVerdict check_counts(const Schedule& s) {
  Seen seen(s);
  const auto twice = first_wrong(s, [&](int rank, int index, const Action& a) -> MaybeVerdict {
    if (seen.add(a)) return {};
    return wrong_action(s, rank, index, "found a second time, wanted once");
  });
  if (twice) return twice;
  for (int stage = 0; stage < s.stages(); ++stage)
    if (const auto verdict = check_stage(s, seen, stage)) return verdict;
  return {};
}

MaybeVerdict check_memory(const Schedule& s, int most_live) {
  if (most_live == 0) return {};
  const auto peaks = peak_live_activations(s);
  for (int rank = 0; rank < s.ranks; ++rank) {
    if (peaks[rank] > most_live)
      return wrong_rank(rank, fmt::format("found {} live activations at the peak, wanted at most {}", peaks[rank], most_live));
  }
  return {};
}

std::vector<int> peak_live_activations(const Schedule& s) {
  std::vector<int> peaks;
  for (const auto& list : s.actions) {
    int live = 0, peak = 0;
    for (const Action& a : list) {
      live += a.kind == Kind::kForward;
      live -= a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight;
      peak = std::max(peak, live);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

Verdict validate(const Schedule& s, int most_live) {
  for (const auto check : {check_shape, check_places, check_counts, check_order, check_channels, check_deadlock})
    if (const auto verdict = check(s)) return *verdict;
  return check_memory(s, most_live).value_or(Verdict());
}

void check_valid(const Schedule& s, int most_live) {
  const Verdict verdict = validate(s, most_live);
  if (!verdict.ok()) refuse("{}: {}", s.name, verdict.reason);
}

}  // namespace muster::sharding::pipeline
