#pragma once

#include <string>
#include <vector>

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

struct ScheduleRequest {
  std::string name = "1f1b";
  int ranks = 1;          // pipeline ranks ("stages" where each has one chunk)
  int micro_batches = 1;  // of one step
  int chunks = 0;         // stages a rank; 0: what the schedule is made for (1; interleaved-1f1b and zbv 2)
};

constexpr int kMostRanks = 4096;
constexpr int kMostCells = 1 << 20;  // micro-batches x stages

std::vector<std::string> schedule_names();

// A complete schedule (messages, reductions included) for any number of micro-batches. Pure. Names:
// - gpipe: all forwards, then all backwards; with chunks, chunk by chunk (breadth first). Huang et al. 2019.
// - 1f1b: one forward, one backward in turn (PipeDream-Flush). Narayanan et al. 2021. With chunks it is interleaved-1f1b.
// - interleaved-1f1b: the same over several chunks a rank. Narayanan et al. 2021, for any number of micro-batches: they are dealt
// into
//   rounds of at least `ranks` where there are so many, as even as can be, longer rounds first.
// - zbv: zero bubble V: two chunks a rank, placed down and up again, backward in two parts. Qi et al. 2024, "Pipeline Parallelism
// with
//   Controllable Memory".
// InputError: an unknown name, numbers out of range, a number of chunks that the schedule cannot have.
Schedule make_schedule(const ScheduleRequest& request);

// InputError naming what is out of range, or the product that is too large.
void check_size(int ranks, int micro_batches, int chunks);

// The two placements, [stage] -> rank: 0 1 2 0 1 2, and 0 1 2 2 1 0.
std::vector<int> looped_placement(int ranks, int chunks);
std::vector<int> v_placement(int ranks);

// Fills in actions of computation alone (zero_bubble.cc).
void fill_zero_bubble_v(Schedule& schedule);

}  // namespace muster::sharding::pipeline
