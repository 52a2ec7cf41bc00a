#include "sharding/data_parallel/gatherer.h"

#include <map>
#include <utility>

#include <c10/core/GradMode.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

std::vector<int> buckets_of(const FlatModel& model, const std::vector<int>& units) {
  std::map<int, int> bucket_of_unit;
  for (const Parameter* p : model.parameters()) bucket_of_unit[p->unit] = model.partition().bucket_of(p->index);
  std::vector<int> buckets;
  for (const int unit : units) {
    MUSTER_CHECK(bucket_of_unit.count(unit));
    if (buckets.empty() || buckets.back() != bucket_of_unit[unit]) buckets.push_back(bucket_of_unit[unit]);
  }
  return buckets;
}

}  // namespace

Gatherer::Gatherer(FlatModel& model, comm::Communicator& communicator, const UnitSchedule& schedule, Options options)
    : model_(model), communicator_(communicator), options_(options), arriving_(model.buckets()) {
  if (!model.shards_state()) return;
  if (model.shards_parameters()) {
    std::vector<int> both = schedule.forward;
    both.insert(both.end(), schedule.backward.begin(), schedule.backward.end());
    schedules_[static_cast<int>(PassKind::kForward)] = buckets_of(model, schedule.forward);
    schedules_[static_cast<int>(PassKind::kForwardBackward)] = buckets_of(model, both);
  }
  for (Parameter* p : model_.parameters()) {
    p->before_use = [this](Parameter& q) { model_.shards_parameters() ? advance_to(q) : wait_for_bucket(q); };
  }
}

Gatherer::~Gatherer() {
  for (Parameter* p : model_.parameters()) p->before_use = nullptr;
}

void Gatherer::begin(PassKind kind) {
  if (!model_.shards_parameters()) return;
  end();
  pass_ = &schedules_[static_cast<int>(kind)];
  next_ = 0;
  if (options_.overlap) ahead_ = gather(pass_->front());
}

void Gatherer::end() {
  if (!pass_) return;
  while (next_ < pass_->size()) step();
  release();
  pass_ = nullptr;
}

void Gatherer::publish() {
  if (!model_.shards_state() || model_.shards_parameters()) return;
  // Backwards: the forward pass needs the last bucket's parameters first.
  for (int b = model_.buckets(); b-- > 0;) {
    arriving_[b] = communicator_.all_gather(model_.whole_parameters(b), model_.owned_parameters(b));
    if (!options_.overlap) arriving_[b]->wait();
  }
}

void Gatherer::wait_for_bucket(Parameter& parameter) {
  if (const auto work = std::exchange(arriving_[model_.partition().bucket_of(parameter.index)], nullptr)) work->wait();
}

void Gatherer::advance_to(const Parameter& parameter) {
  const int bucket = model_.partition().bucket_of(parameter.index);
  while (current_ != bucket) {
    if (!pass_ || next_ == pass_->size()) throw CheckError("ZeRO-3: " + parameter.name + " is used where the schedule of the pass does not have its unit");
    step();
  }
}

// The schedule's next bucket becomes the one that is whole, and the one after it sets out.
void Gatherer::step() {
  release();
  const int bucket = (*pass_)[next_++];
  Arrival arrived = ahead_.bucket == bucket ? std::exchange(ahead_, {}) : gather(bucket);
  arrived.work->wait();
  model_.attach_parameters(bucket, arrived.buffer);
  current_ = bucket;
  current_buffer_ = std::move(arrived.buffer);
  if (options_.overlap && next_ < pass_->size()) ahead_ = gather((*pass_)[next_]);
}

Gatherer::Arrival Gatherer::gather(int bucket) {
  const c10::AutoGradMode no_graph(false);
  Arrival arrival{bucket, {}, model_.param_pool().take()};
  arrival.work = communicator_.all_gather(arrival.buffer.narrow(0, 0, model_.partition().buckets()[bucket].size()), model_.owned_parameters(bucket));
  return arrival;
}

void Gatherer::release() {
  if (current_ < 0) return;
  model_.detach_parameters(current_);
  model_.param_pool().give_back(std::move(current_buffer_));
  current_ = -1;
}

}  // namespace muster::sharding
