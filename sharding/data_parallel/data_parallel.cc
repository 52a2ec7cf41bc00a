#include "sharding/data_parallel/data_parallel.h"

#include <c10/core/GradMode.h>

namespace muster::sharding {
namespace {

FlatOptions with_shard(FlatOptions options, const Groups& groups) {
  options.shard = groups.shard().rank();
  options.shards = groups.shard().size();
  return options;
}

}  // namespace

DataParallel::DataParallel(std::vector<Parameter*> parameters, const UnitSchedule& schedule, FlatOptions options, const Groups& groups,
                           Reducer::Options reduction)
    : groups_(groups),
      flat_(std::move(parameters), with_shard(std::move(options), groups)),
      reducer_(flat_, groups.shard(), groups.replica(), reduction),
      gatherer_(flat_, groups.gather(), schedule, {reduction.overlap}) {}

void DataParallel::initialize(const std::function<void(Parameter&)>& fill) {
  const c10::AutoGradMode no_graph(false);
  for (int b = 0; b < flat_.buckets(); ++b) {
    const auto& bucket = flat_.partition().buckets()[b];
    at::Tensor buffer = flat_.shards_parameters() ? flat_.param_pool().take().zero_() : at::Tensor();
    const at::Tensor whole = buffer.defined() ? flat_.attach_parameters(b, buffer) : flat_.whole_parameters(b);
    for (const int i : bucket.parameters) fill(*flat_.parameters()[i]);
    groups_.replica().broadcast(whole, 0)->wait();
    groups_.shard().broadcast(whole, 0)->wait();
    if (!buffer.defined()) continue;
    const ShardRange& range = flat_.owned()[b];
    flat_.owned_parameters(b).copy_(whole.narrow(0, range.begin - bucket.begin, range.size()));
    flat_.detach_parameters(b);
    flat_.param_pool().give_back(std::move(buffer));
  }
}

void DataParallel::visit(const std::function<void(const Parameter&)>& show) {
  const c10::AutoGradMode no_graph(false);
  for (int b = 0; b < flat_.buckets(); ++b) {
    at::Tensor buffer = flat_.shards_parameters() ? flat_.param_pool().take() : at::Tensor();
    if (buffer.defined()) groups_.gather().all_gather(flat_.attach_parameters(b, buffer), flat_.owned_parameters(b))->wait();
    for (const int i : flat_.partition().buckets()[b].parameters) {
      if (!buffer.defined()) flat_.parameters()[i]->use();
      show(*flat_.parameters()[i]);
    }
    if (!buffer.defined()) continue;
    flat_.detach_parameters(b);
    flat_.param_pool().give_back(std::move(buffer));
  }
}

void DataParallel::begin_micro_batch(bool last) {
  gatherer_.begin(PassKind::kForwardBackward);
  reducer_.begin_backward(last);
}

void DataParallel::finalize() {
  gatherer_.end();
  reducer_.finalize();
}

void DataParallel::publish() { gatherer_.publish(); }

}  // namespace muster::sharding
