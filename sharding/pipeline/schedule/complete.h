#pragma once

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// Adds what follows from the order of computation, each of the three only where the schedule has none of it yet:
// - messages: each send right after what it carries was computed, each receive right before its use, or earlier where the
// channel's
//   order of sends asks for it; none between two stages of one rank;
// - a stage's kReduce after its last backward (or weight gradient), its kUnshard before its first forward.
// An incomplete schedule stays one; the validator says what is missing. Stages must be in range.
void complete(Schedule& schedule);

}  // namespace muster::sharding::pipeline
