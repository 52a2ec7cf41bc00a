#include "sharding/pipeline/schedule/simulator.h"

#include <algorithm>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/walk.h"

namespace muster::sharding::pipeline {

double cost_of(const Costs& costs, Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return costs.forward;
    case Kind::kBackward:
      return costs.backward_input + costs.backward_weight;
    case Kind::kBackwardInput:
      return costs.backward_input;
    case Kind::kBackwardWeight:
      return costs.backward_weight;
    default:
      return 0;
  }
}

Timeline simulate(const Schedule& s, const Costs& costs) {
  Timeline t;
  for (const auto& list : s.actions) t.spans.emplace_back(list.size());
  std::vector<double> now(s.actions.size());
  const auto reached = walk(s, [&](Place here, Place sent) {
    Span& span = t.spans[here.rank][here.index];
    const double cost = cost_of(costs, s.actions[here.rank][here.index].kind);
    span.begin = now[here.rank];
    span.end = span.begin + cost;
    if (sent.rank >= 0) span.end = std::max(span.begin, t.spans[sent.rank][sent.index].end + costs.message);
    now[here.rank] = span.end;
    t.busy += cost / static_cast<double>(s.actions.size());
  });
  for (size_t rank = 0; rank < reached.size(); ++rank)
    MUSTER_CHECK_EQ(static_cast<size_t>(reached[rank]), s.actions[rank].size());
  t.step = *std::max_element(now.begin(), now.end());
  return t;
}

}  // namespace muster::sharding::pipeline
