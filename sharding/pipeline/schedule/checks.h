#pragma once
// The validator's parts; each may assume what those before it found right.

#include <cstdint>
#include <optional>

#include "sharding/pipeline/schedule/validator.h"

namespace muster::sharding::pipeline {

using MaybeVerdict = std::optional<Verdict>;

MaybeVerdict check_shape(const Schedule& s);
MaybeVerdict check_places(const Schedule& s);
MaybeVerdict check_counts(const Schedule& s);
MaybeVerdict check_order(const Schedule& s);
MaybeVerdict check_channels(const Schedule& s);
MaybeVerdict check_deadlock(const Schedule& s);
MaybeVerdict check_memory(const Schedule& s, int most_live);

// "rank 1, action 5 (1RECV_F3): what".
Verdict wrong_action(const Schedule& s, int rank, int index, const std::string& what);
// "rank 1: what".
Verdict wrong_rank(int rank, const std::string& what);

// Whether two stages lie on different ranks; false where `peer` does not exist.
bool crosses_ranks(const Schedule& s, int stage, int peer);

// The first verdict of check(rank, index, action), in order of ranks.
template <typename Check>
MaybeVerdict first_wrong(const Schedule& s, Check check) {
  for (int rank = 0; rank < static_cast<int>(s.actions.size()); ++rank)
    for (int index = 0; index < static_cast<int>(s.actions[rank].size()); ++index)
      if (MaybeVerdict verdict = check(rank, index, s.actions[rank][index])) return verdict;
  return {};
}

// Which kinds have been seen, for each micro-batch on each stage and (the last column) for the stage as a whole.
class Seen {
 public:
  explicit Seen(const Schedule& s) : columns_(s.micro_batches + 1), kinds_(s.stages() * columns_) {}

  bool has(const Action& a) const { return kinds_[at(a)] & bit(a); }
  // False where it was there already.
  bool add(const Action& a) {
    const bool fresh = !has(a);
    kinds_[at(a)] |= bit(a);
    return fresh;
  }

 private:
  static uint16_t bit(const Action& a) { return static_cast<uint16_t>(1u << static_cast<int>(a.kind)); }
  size_t at(const Action& a) const { return a.stage * columns_ + (a.micro_batch < 0 ? columns_ - 1 : a.micro_batch); }

  size_t columns_;
  std::vector<uint16_t> kinds_;
};

}  // namespace muster::sharding::pipeline
