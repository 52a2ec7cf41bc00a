#include "sharding/data_parallel/reducer.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include "comm/base/log.h"

namespace muster::sharding {
namespace {

std::vector<std::string> describe(const std::vector<Parameter*>& parameters) {
  std::vector<std::string> lines;
  for (const Parameter* p : parameters) lines.push_back(fmt::format("{} [{}] {}", p->name, fmt::join(p->shape, ", "), toString(p->tensor.scalar_type())));
  return lines;
}

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string line; std::getline(stream, line);) out.push_back(line);
  return out;
}

}  // namespace

void check_same_parameters(const std::vector<Parameter*>& parameters, comm::Rendezvous& rendezvous, Deadline deadline) {
  const std::string mine = fmt::format("{}", fmt::join(describe(parameters), "\n"));
  const auto all = rendezvous.exchange(mine, deadline);
  const auto wanted = lines(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto found = lines(all[rank]);
    for (size_t i = 0; i < std::max(found.size(), wanted.size()); ++i) {
      const std::string a = i < wanted.size() ? wanted[i] : "nothing", b = i < found.size() ? found[i] : "nothing";
      if (a != b) refuse("model differs between ranks: parameter {} is '{}' on rank 0 and '{}' on rank {}; give all ranks one configuration", i, a, b, rank);
    }
  }
}

Reducer::Reducer(FlatModel& model, comm::Communicator& shard, comm::Communicator& replica, Options options)
    : model_(model),
      shard_(shard),
      replica_(replica),
      options_(options),
      incoming_pool_(model.partition().largest_bucket() / shard.size(), model.grad_options().dtype(wire_dtype())),
      rebuilt_(model.shards_state()),
      lent_(model.buckets()) {
  MUSTER_CHECK(!options_.compression || !model.shards_state());
  if (options_.compression && replica.size() > 1) compressed_ = options_.compression(model, replica);
  for (Parameter* p : model_.parameters()) {
    p->on_complete = [this](Parameter& q) { completed(q); };
    if (model_.shards_gradients()) p->before_gradient = [this](Parameter& q) { lend_buffer(q); };
  }
}

Reducer::~Reducer() {
  for (Parameter* p : model_.parameters()) p->on_complete = p->before_gradient = nullptr;
}

void Reducer::begin_backward(bool last) {
  launch_rest();
  last_ = last;
  in_pass_ = true;
  next_bucket_ = 0;
  missing_.clear();
  for (const auto& bucket : model_.partition().buckets()) missing_.push_back(static_cast<int>(bucket.parameters.size()));
  for (Parameter* p : model_.parameters()) {
    p->reported = 0;
    p->passes = 1;
    if (p->frozen) --missing_[model_.partition().bucket_of(p->index)];
  }
}

void Reducer::begin_step(int passes) {
  MUSTER_CHECK(!model_.shards_gradients());
  begin_backward(true);
  for (Parameter* p : model_.parameters()) p->passes = passes;
}

void Reducer::lend_buffer(Parameter& parameter) {
  const int bucket = model_.partition().bucket_of(parameter.index);
  if (model_.whole_gradients(bucket).defined()) return;
  lent_[bucket] = model_.grad_pool().take();
  model_.attach_gradients(bucket, lent_[bucket]);
}

void Reducer::completed(Parameter& parameter) {
  if (!reduces()) return;
  if (!rebuilt_) arrivals_.push_back(parameter.index);
  --missing_[model_.partition().bucket_of(parameter.index)];
  if (options_.overlap || model_.shards_gradients()) launch_ready();
}

void Reducer::launch_ready() {
  while (next_bucket_ < model_.buckets() && missing_[next_bucket_] == 0) launch(next_bucket_++);
}

// Ends a pass: what no operation reported is reduced as zero.
void Reducer::launch_rest() {
  if (!in_pass_) return;
  while (reduces() && next_bucket_ < model_.buckets()) launch(next_bucket_++);
  in_pass_ = false;
  first_pass_ = false;
}

void Reducer::launch(int bucket) {
  const c10::AutoGradMode no_graph(false);
  for (const int i : model_.partition().buckets()[bucket].parameters) {
    Parameter& p = *model_.parameters()[i];
    if (!p.has_grad) p.gradient().zero_();
    if (model_.shards_gradients()) p.has_grad = false;  // the sum lives in the shard; the next micro-batch starts anew
  }
  if (model_.shards_state()) {
    scatter(bucket);
  } else if (compressed_) {
    compressed_->begin(bucket);
  } else {
    reduce_over_replicas(model_.whole_gradients(bucket));
  }
}

void Reducer::scatter(int bucket) {
  Flight flight;
  flight.bucket = bucket;
  flight.last = last_;
  flight.whole = std::exchange(lent_[bucket], {});
  flight.adds = model_.shards_gradients() && !first_pass_;
  const at::Tensor whole = model_.whole_gradients(bucket), owned = model_.owned_gradients(bucket);
  if (flight.adds || wire_dtype() != owned.scalar_type()) flight.incoming = incoming_pool_.take();
  flight.work = shard_.reduce_scatter(flight.incoming.defined() ? flight.incoming.narrow(0, 0, owned.size(0)) : owned, for_the_wire(whole));
  if (model_.shards_gradients()) model_.detach_gradients(bucket);
  flights_.push_back(std::move(flight));
  if (model_.shards_gradients() || replica_.size() > 1) land_down_to(options_.overlap ? kInFlight : 0);
}

void Reducer::land_down_to(size_t count) {
  while (flights_.size() > count) {
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    land(std::move(flight));
  }
}

void Reducer::land(Flight flight) {
  const c10::AutoGradMode no_graph(false);
  flight.work->wait();
  const at::Tensor owned = model_.owned_gradients(flight.bucket);
  if (flight.incoming.defined()) {
    const at::Tensor part = flight.incoming.narrow(0, 0, owned.size(0));
    flight.adds ? owned.add_(part) : owned.copy_(part);
    incoming_pool_.give_back(std::move(flight.incoming));
  }
  if (flight.whole.defined()) model_.grad_pool().give_back(std::move(flight.whole));
  if (flight.last) reduce_over_replicas(owned);
}

void Reducer::reduce_over_replicas(const at::Tensor& gradients) {
  if (replica_.size() == 1) return;
  const at::Tensor travelling = for_the_wire(gradients);
  sums_.push_back({replica_.all_reduce(travelling), travelling, gradients});
}

void Reducer::finalize() {
  MUSTER_CHECK(last_);
  launch_rest();
  land_down_to(0);
  const c10::AutoGradMode no_graph(false);
  for (const Sum& sum : sums_) {
    sum.work->wait();
    if (!sum.travelling.is_same(sum.gradients)) sum.gradients.copy_(sum.travelling);
  }
  sums_.clear();
  for (int b = 0; compressed_ && b < model_.buckets(); ++b) compressed_->end(b);
  last_ = false;
  first_pass_ = true;
  for (Parameter* p : model_.parameters()) p->has_grad = false;
}

bool Reducer::rebuild_once() {
  if (rebuilt_) return false;
  rebuilt_ = true;
  const auto order = arrival_order_of_rank0();
  log_debug("buckets rebuilt in arrival order: {}", fmt::join(order, " "));
  model_.rebuild(order);
  return true;
}

std::vector<int> Reducer::arrival_order_of_rank0() {
  const int count = static_cast<int>(model_.parameters().size());
  for (int p = count - 1; p >= 0; --p) {
    if (std::find(arrivals_.begin(), arrivals_.end(), p) == arrivals_.end()) arrivals_.push_back(p);
  }
  at::Tensor order = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  std::copy(arrivals_.begin(), arrivals_.end(), order.mutable_data_ptr<int64_t>());
  order = order.to(model_.grad_options().device());
  replica_.broadcast(order, 0)->wait();
  order = order.to(at::kCPU);
  const int64_t* data = order.const_data_ptr<int64_t>();
  return {data, data + count};
}

}  // namespace muster::sharding
