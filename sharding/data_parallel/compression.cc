#include "sharding/data_parallel/compression.h"

#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "sharding/data_parallel/two_phase_sum.h"

namespace muster::sharding {

void keep_where(const at::Tensor& condition, const at::Tensor& fresh, const at::Tensor& kept) {
  if (!condition.is_cpu()) {
    kept.copy_(at::where(condition, fresh, kept));
  } else if (condition.item<bool>()) {
    kept.copy_(fresh);
  }
}

TwoPhaseSum::TwoPhaseSum(FlatModel& model) : model_(model) { MUSTER_CHECK(!model.shards_state()); }

void TwoPhaseSum::begin(int bucket) {
  const c10::AutoGradMode no_graph(false);
  if (flights_.empty()) follow_layout();
  flights_.push_back({bucket, start(bucket)});
}

void TwoPhaseSum::end(int bucket) {
  const c10::AutoGradMode no_graph(false);
  MUSTER_CHECK(!flights_.empty());
  MUSTER_CHECK_EQ(flights_.front().bucket, bucket);
  turn(flights_.front());
  if (flights_.size() > 1) turn(flights_[1]);
  flights_.front().exchange->finish();
  flights_.pop_front();
}

void TwoPhaseSum::turn(Flight& flight) {
  if (!flight.turned) flight.exchange->turn();
  flight.turned = true;
}

}  // namespace muster::sharding
