#pragma once

#include <functional>
#include <vector>

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// Where an action stands: schedule.actions[rank][index].
struct Place {
  int rank = -1, index = -1;
};

// Called once an action. `sent`: where a receive's message comes from; rank -1 for every other action.
using Visit = std::function<void(Place here, Place sent)>;

// Walks the happens-before graph of a schedule in topological order: edges are each rank's own order and send -> receive,
// messages of a channel matched first to first. Returns how far each rank came. All ranks come to their ends if and only if the
// graph has no cycle; which action waits for which does not depend on any timing, so then no timing can deadlock, and otherwise
// every one does. Messages must lie between existing stages.
std::vector<int> walk(const Schedule& schedule, const Visit& visit);

}  // namespace muster::sharding::pipeline
