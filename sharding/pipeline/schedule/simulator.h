#pragma once

#include <vector>

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// How long each action of one stage takes, in any one unit. A whole backward takes both parts. Reductions and unshards take none.
struct Costs {
  double forward = 1, backward_input = 1, backward_weight = 1;
  double message = 0;  // from the end of a send to its arrival; a send itself takes the rank no time
};

struct Span {
  double begin = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<Span>> spans;  // [rank][index], as Schedule::actions; a receive spans the rank's wait
  double step = 0;                       // until the last rank is done
  double busy = 0;                       // computation, mean over the ranks
  // Idle time by what a schedule without a bubble would take. (p - 1) / m for GPipe and 1F1B, (p - 1) / (v m) interleaved.
  double bubble() const { return busy > 0 ? (step - busy) / busy : 0; }
  // Idle time by the whole step.
  double idle_share() const { return step > 0 ? (step - busy) / step : 0; }
};

double cost_of(const Costs& costs, Kind kind);

// Runs a valid schedule (CheckError where it is not) on ranks of equal speed. Pure.
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace muster::sharding::pipeline
