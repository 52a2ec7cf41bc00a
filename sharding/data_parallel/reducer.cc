#include "sharding/data_parallel/reducer.h"

#include <algorithm>
#include <sstream>

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

Reducer::Reducer(FlatModel& model, comm::Communicator& communicator, Options options)
    : model_(model), communicator_(communicator), options_(options), rebuilt_(options.zero_stage > 0) {
  find_owned();
  for (Parameter* p : model_.parameters()) p->on_complete = [this](Parameter& q) { completed(q); };
}

Reducer::~Reducer() {
  for (Parameter* p : model_.parameters()) p->on_complete = nullptr;
}

void Reducer::find_owned() {
  owned_.clear();
  for (const auto& bucket : model_.partition().buckets()) {
    const int64_t parts = shards_optimizer() ? communicator_.size() : 1, part = shards_optimizer() ? communicator_.rank() : 0;
    MUSTER_CHECK_EQ(bucket.size() % (parts * Partition::kAlignElements), 0);
    OwnedRange range;
    range.begin = bucket.begin + bucket.size() / parts * part;
    range.end = range.begin + bucket.size() / parts;
    range.decay_end = std::clamp(bucket.decay_end, range.begin, range.end);
    owned_.push_back(range);
  }
}

void Reducer::broadcast_parameters() { communicator_.broadcast(model_.param_buffer(), 0)->wait(); }

void Reducer::begin_backward(bool last) {
  reducing_ = last;
  next_bucket_ = 0;
  missing_.clear();
  for (const auto& bucket : model_.partition().buckets()) missing_.push_back(static_cast<int>(bucket.parameters.size()));
  for (Parameter* p : model_.parameters()) p->reported = 0;
}

void Reducer::completed(Parameter& parameter) {
  if (!reducing_) return;
  const auto& parameters = model_.parameters();
  const int index = static_cast<int>(std::find(parameters.begin(), parameters.end(), &parameter) - parameters.begin());
  if (!rebuilt_) arrivals_.push_back(index);
  --missing_[model_.partition().bucket_of(index)];
  if (options_.overlap) launch_ready();
}

void Reducer::launch_ready() {
  while (next_bucket_ < static_cast<int>(missing_.size()) && missing_[next_bucket_] == 0) launch(next_bucket_++);
}

void Reducer::launch(int bucket) {
  const c10::AutoGradMode no_graph(false);
  for (const int i : model_.partition().buckets()[bucket].parameters) {
    Parameter& p = *model_.parameters()[i];
    if (!p.has_grad) p.grad.zero_();  // unused in every micro-batch of this step
  }
  const at::Tensor gradients = model_.grad_bucket(bucket);
  if (shards_optimizer()) {
    works_.push_back(communicator_.reduce_scatter(model_.grad_buffer().narrow(0, owned_[bucket].begin, owned_[bucket].size()), gradients));
  } else {
    works_.push_back(communicator_.all_reduce(gradients));
  }
}

void Reducer::finalize() {
  MUSTER_CHECK(reducing_);
  while (next_bucket_ < static_cast<int>(missing_.size())) launch(next_bucket_++);
  for (const auto& work : works_) work->wait();
  works_.clear();
  reducing_ = false;
  for (Parameter* p : model_.parameters()) p->has_grad = false;
}

void Reducer::publish() {
  if (!shards_optimizer()) return;
  const auto& buckets = model_.partition().buckets();
  // Backwards: the forward pass needs the last bucket's parameters first.
  for (size_t b = buckets.size(); b-- > 0;) {
    const at::Tensor all = model_.param_buffer().narrow(0, buckets[b].begin, buckets[b].size());
    const comm::WorkPtr work = communicator_.all_gather(all, model_.param_buffer().narrow(0, owned_[b].begin, owned_[b].size()));
    if (!options_.overlap) work->wait();
    for (const int i : buckets[b].parameters) model_.parameters()[i]->arriving = work;
  }
}

std::optional<Partition> Reducer::rebuild_once() {
  if (rebuilt_) return std::nullopt;
  rebuilt_ = true;
  const auto order = arrival_order_of_rank0();
  log_debug("buckets rebuilt in arrival order: {}", fmt::join(order, " "));
  Partition old = model_.rebuild(order);
  find_owned();
  return old;
}

std::vector<int> Reducer::arrival_order_of_rank0() {
  const int count = static_cast<int>(model_.parameters().size());
  for (int p = count - 1; p >= 0; --p) {
    if (std::find(arrivals_.begin(), arrivals_.end(), p) == arrivals_.end()) arrivals_.push_back(p);
  }
  at::Tensor order = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  std::copy(arrivals_.begin(), arrivals_.end(), order.mutable_data_ptr<int64_t>());
  order = order.to(model_.grad_buffer().device());
  communicator_.broadcast(order, 0)->wait();
  order = order.to(at::kCPU);
  const int64_t* data = order.const_data_ptr<int64_t>();
  return {data, data + count};
}

}  // namespace muster::sharding
