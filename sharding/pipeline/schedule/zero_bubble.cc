// The zero-bubble V schedule. The order of a rank with enough micro-batches is Qi et al. 2024's ("Pipeline Parallelism with
// Controllable Memory", ZB-V); with fewer there is no steady phase to keep free of bubbles, and the order is found slot by slot.

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

constexpr int kParts = 3;  // forward, backward-input, backward-weight

int part_of(Kind kind) { return kind == Kind::kForward ? 0 : kind == Kind::kBackwardInput ? 1 : 2; }

// One rank's list as it grows: each (kind, chunk) goes through the micro-batches in order.
class Row {
 public:
  Row(Schedule& s, int rank) : out_(s.actions[rank]), micro_batches_(s.micro_batches), stages_{rank, s.stages() - 1 - rank} {}

  int done(Kind kind, int chunk) const { return done_[part_of(kind)][chunk]; }
  bool left(Kind kind, int chunk) const { return done(kind, chunk) < micro_batches_; }
  int stage(int chunk) const { return stages_[chunk]; }
  // Forward passes whose weight gradients are still to come: what the rank keeps activations of.
  int live() const {
    return done(Kind::kForward, 0) + done(Kind::kForward, 1) - done(Kind::kBackwardWeight, 0) - done(Kind::kBackwardWeight, 1);
  }
  int waiting_weights(int chunk) const { return done(Kind::kBackwardInput, chunk) - done(Kind::kBackwardWeight, chunk); }

  void add(Kind kind, int chunk) { out_.push_back({kind, stages_[chunk], done_[part_of(kind)][chunk]++}); }
  void add_backward(int chunk) {
    add(Kind::kBackwardInput, chunk);
    add(Kind::kBackwardWeight, chunk);
  }

 private:
  std::vector<Action>& out_;
  int micro_batches_;
  int stages_[2];
  int done_[kParts][2] = {};
};

void fill_steady(Schedule& s, int rank) {
  Row row(s, rank);
  const int below = s.ranks - rank;  // this rank and those after it
  // Down: micro-batches enter until the first one is back from the turn of the V.
  for (int i = 0; i < 2 * below - 1; ++i) row.add(Kind::kForward, 0);
  for (int i = 0; i < rank; ++i) {
    row.add(Kind::kForward, 1);
    row.add(Kind::kForward, 0);
  }
  // Up: the other chunk catches up.
  for (int i = 0; i < below; ++i) {
    row.add(Kind::kForward, 1);
    row.add_backward(1);
  }
  // Steady: each micro-batch that leaves makes room for one.
  while (row.left(Kind::kForward, 1)) {
    if (row.left(Kind::kForward, 0)) row.add(Kind::kForward, 0);
    row.add_backward(0);
    row.add(Kind::kForward, 1);
    row.add_backward(1);
  }
  // Out: weight gradients wait, and fill the time in which nothing arrives any more.
  for (int i = 0; i < rank; ++i) {
    row.add(Kind::kBackwardInput, 0);
    row.add(Kind::kBackwardInput, 1);
  }
  for (int i = 0; i < below; ++i) row.add_backward(0);
  for (const int chunk : {1, 0})
    while (row.waiting_weights(chunk) > 0) row.add(Kind::kBackwardWeight, chunk);
}

// List scheduling in slots of equal length. A rank takes, of what is ready, the forward deepest in the model, else an input
// gradient, else a weight gradient; where its memory is full, a weight gradient frees some.
class SlotBySlot {
 public:
  explicit SlotBySlot(Schedule& s) : schedule_(s), most_live_(2 * s.ranks), forwards_(s.stages()), inputs_(s.stages()) {
    for (int rank = 0; rank < s.ranks; ++rank) rows_.emplace_back(s, rank);
  }

  void fill() {
    while (!finished()) {
      note_progress();
      bool any = false;
      for (Row& row : rows_) any |= take_one(row);
      MUSTER_CHECK(any);
    }
  }

 private:
  bool finished() const {
    for (const Row& row : rows_)
      if (row.left(Kind::kBackwardWeight, 0) || row.left(Kind::kBackwardWeight, 1)) return false;
    return true;
  }

  // What other ranks see in this slot is what was done before it.
  void note_progress() {
    for (const Row& row : rows_) {
      for (const int chunk : {0, 1}) {
        forwards_[row.stage(chunk)] = row.done(Kind::kForward, chunk);
        inputs_[row.stage(chunk)] = row.done(Kind::kBackwardInput, chunk);
      }
    }
  }

  bool ready(const Row& row, Kind kind, int chunk) const {
    const int stage = row.stage(chunk), next = row.done(kind, chunk);
    if (!row.left(kind, chunk)) return false;
    if (kind == Kind::kBackwardWeight) return row.waiting_weights(chunk) > 0;
    if (kind == Kind::kForward) return row.live() < most_live_ && (stage == 0 || next < forwards_[stage - 1]);
    return next < forwards_[stage] && (stage + 1 == schedule_.stages() || next < inputs_[stage + 1]);
  }

  bool take_one(Row& row) {
    struct Choice {
      Kind kind;
      int chunk;
    };
    constexpr Choice kInOrder[] = {{Kind::kForward, 1},       {Kind::kForward, 0},        {Kind::kBackwardInput, 0},
                                   {Kind::kBackwardInput, 1}, {Kind::kBackwardWeight, 0}, {Kind::kBackwardWeight, 1}};
    constexpr Choice kMemoryFull[] = {
        {Kind::kBackwardWeight, 0}, {Kind::kBackwardWeight, 1}, {Kind::kBackwardInput, 0}, {Kind::kBackwardInput, 1}};
    const auto take = [&](const auto& choices) {
      for (const auto& [kind, chunk] : choices)
        if (ready(row, kind, chunk)) return row.add(kind, chunk), true;
      return false;
    };
    return row.live() >= most_live_ ? take(kMemoryFull) : take(kInOrder);
  }

  Schedule& schedule_;
  const int most_live_;
  std::vector<Row> rows_;
  std::vector<int> forwards_, inputs_;  // [stage], micro-batches done
};

}  // namespace

void fill_zero_bubble_v(Schedule& s) {
  if (s.micro_batches < 2 * s.ranks - 1) return SlotBySlot(s).fill();
  for (int rank = 0; rank < s.ranks; ++rank) fill_steady(s, rank);
}

}  // namespace muster::sharding::pipeline
