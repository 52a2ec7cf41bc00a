#pragma once

#include <string>
#include <vector>

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// The first thing that is wrong, or nothing.
struct Verdict {
  int rank = -1;       // who does or lacks the action
  int index = -1;      // in the rank's list; -1: the action is missing, or the schedule as a whole is wrong
  std::string reason;  // one line: "rank 1, action 5 (1RECV_F3): found ..., wanted ..."; empty: right
  bool ok() const { return reason.empty(); }
};

// Whether every rank can walk its list to the end, whatever the timing, and does each piece of work once. Checks in this order:
// 1. sizes; every rank has `chunks` stages; every action concerns a stage of its rank and a micro-batch of the step;
// 2. counts: each micro-batch on each stage exactly one forward, one backward or one of both parts; each message between two
// ranks
//    sent once and received once by the neighbour, none within a rank; one reduction and one unshard a stage;
// 3. order within a rank: what an action needs has happened (its input, its forward, its input part, all backwards before a
// reduction);
// 4. each channel's messages are received in the order in which they are sent;
// 5. no deadlock: the happens-before graph (walk.h) has no cycle;
// 6. memory: at most `most_live` activations on any rank; 0: any number.
// Pure; safe on any content; time grows with the number of actions.
Verdict validate(const Schedule& schedule, int most_live = 0);

// InputError with the reason.
void check_valid(const Schedule& schedule, int most_live = 0);

// [rank] the most (micro-batch, stage) pairs that the rank has run forward but not yet wholly backward, at any time.
std::vector<int> peak_live_activations(const Schedule& schedule);

}  // namespace muster::sharding::pipeline
