#include "sharding/data_parallel/flat_model.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

std::vector<ParameterSpec> specs_of(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const Parameter* p : parameters) specs.push_back({p->name, p->shape, p->decay, p->unit});
  return specs;
}

FlatOptions complete(FlatOptions options) {
  MUSTER_CHECK(options.zero_stage > 0 || options.shards == 1);
  options.partition.element_bytes = static_cast<int64_t>(c10::elementSize(options.grad_dtype));
  options.partition.shards = options.shards;
  options.partition.by_unit = options.zero_stage > 2;
  return options;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

// An order of the dimensions in which each stride is the product of the sizes behind it.
bool without_gaps(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (strides.size() != shape.size()) return false;
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t wanted = 1;
  for (const size_t i : order) {
    if (shape[i] > 1 && strides[i] != wanted) return false;
    wanted *= std::max<int64_t>(shape[i], 1);
  }
  return true;
}

// Moves what AccumulateGrad put into .grad to the flat buffer.
class TakeGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit TakeGradient(Parameter& parameter) : parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& variable) override {
    const at::Tensor g = variable.grad();
    variable.mutable_grad().reset();
    const c10::AutoGradMode no_graph(false);
    parameter_.add_gradient(g);
  }

 private:
  Parameter& parameter_;
};

}  // namespace

at::Tensor BufferPool::take() {
  if (free_.empty()) {
    ++made_;
    return at::empty({elements_}, options_);
  }
  at::Tensor buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

FlatModel::FlatModel(std::vector<Parameter*> parameters, FlatOptions options)
    : parameters_(std::move(parameters)),
      specs_(specs_of(parameters_)),
      options_(complete(std::move(options))),
      partition_(specs_, reverse_registration_order(static_cast<int>(specs_.size())), options_.partition),
      param_pool_(partition_.largest_bucket(), at::TensorOptions().dtype(options_.param_dtype).device(options_.device)),
      grad_pool_(partition_.largest_bucket(), at::TensorOptions().dtype(options_.grad_dtype).device(options_.device)) {
  const auto zeros = [&](bool shard, at::ScalarType dtype) {
    return at::zeros({shard ? partition_.size() / options_.shards : partition_.size()}, at::TensorOptions().dtype(dtype).device(options_.device));
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    p.index = static_cast<int>(i);
    if (p.strides.empty()) p.strides = contiguous_strides(p.shape);
    MUSTER_CHECK(without_gaps(p.shape, p.strides));
  }
  params_ = zeros(shards_parameters(), options_.param_dtype);
  grads_ = zeros(shards_gradients(), options_.grad_dtype);
  for (Parameter* p : parameters_) {
    p->tensor = at::empty({0}, params_.options());
    p->tensor.set_requires_grad(!p->frozen);
  }
  lay_out();
}

void FlatModel::lay_out() {
  owned_ = partition_.shard(options_.shard, options_.shards);
  whole_params_.assign(buckets(), {});
  whole_grads_.assign(buckets(), {});
  for (int b = 0; b < buckets(); ++b) {
    const auto& bucket = partition_.buckets()[b];
    if (!shards_parameters()) {
      whole_params_[b] = params_.narrow(0, bucket.begin, bucket.size());
      point_values(b);
    }
    if (!shards_gradients()) {
      whole_grads_[b] = grads_.narrow(0, bucket.begin, bucket.size());
      point_gradients(b);
    }
  }
  find_updates();
}

at::Tensor FlatModel::view_of(const Parameter& parameter, const at::Tensor& bucket_buffer) const {
  const int64_t begin = partition_.offset(parameter.index) - partition_.buckets()[partition_.bucket_of(parameter.index)].begin;
  return bucket_buffer.as_strided(parameter.shape, parameter.strides, bucket_buffer.storage_offset() + begin);
}

void FlatModel::point_values(int bucket) {
  const c10::AutoGradMode no_graph(false);
  for (const int i : partition_.buckets()[bucket].parameters) {
    Parameter& p = *parameters_[i];
    p.tensor.set_data(view_of(p, whole_params_[bucket]));  // keeps the leaf and its hooks
  }
}

void FlatModel::point_gradients(int bucket) {
  for (const int i : partition_.buckets()[bucket].parameters) parameters_[i]->grad = view_of(*parameters_[i], whole_grads_[bucket]);
}

at::Tensor FlatModel::attach_parameters(int bucket, const at::Tensor& buffer) {
  MUSTER_CHECK(shards_parameters() && !whole_params_[bucket].defined());
  whole_params_[bucket] = buffer.narrow(0, 0, partition_.buckets()[bucket].size());
  point_values(bucket);
  return whole_params_[bucket];
}

void FlatModel::detach_parameters(int bucket) {
  MUSTER_CHECK(shards_parameters());
  const c10::AutoGradMode no_graph(false);
  whole_params_[bucket] = at::Tensor();
  const at::Tensor nothing = at::empty({0}, params_.options());
  for (const int i : partition_.buckets()[bucket].parameters) parameters_[i]->tensor.set_data(nothing);
}

at::Tensor FlatModel::attach_gradients(int bucket, const at::Tensor& buffer) {
  MUSTER_CHECK(shards_gradients() && !whole_grads_[bucket].defined());
  const auto& b = partition_.buckets()[bucket];
  const at::Tensor whole = whole_grads_[bucket] = buffer.narrow(0, 0, b.size());
  point_gradients(bucket);
  for (size_t i = 0; i < b.parameters.size(); ++i) {  // a used buffer may hold anything in the gaps
    const int64_t end = partition_.offset(b.parameters[i]) + specs_[b.parameters[i]].numel();
    const int64_t next = i + 1 < b.parameters.size() ? partition_.offset(b.parameters[i + 1]) : b.end;
    if (next > end) whole.narrow(0, end - b.begin, next - end).zero_();
  }
  return whole;
}

void FlatModel::detach_gradients(int bucket) {
  MUSTER_CHECK(shards_gradients());
  whole_grads_[bucket] = at::Tensor();
  for (const int i : partition_.buckets()[bucket].parameters) parameters_[i]->grad = at::Tensor();
}

at::Tensor FlatModel::owned_parameters(int bucket) const {
  const ShardRange& range = owned_[bucket];
  return params_.narrow(0, shards_parameters() ? range.at : range.begin, range.size());
}

at::Tensor FlatModel::owned_gradients(int bucket) const {
  const ShardRange& range = owned_[bucket];
  return grads_.narrow(0, shards_gradients() ? range.at : range.begin, range.size());
}

std::vector<at::Tensor> FlatModel::owned_gradients() const {
  if (shards_gradients() || !shards_state()) return {grads_};
  std::vector<at::Tensor> parts;
  for (int b = 0; b < buckets(); ++b) parts.push_back(owned_gradients(b));
  return parts;
}

int64_t FlatModel::first_nonfinite_gradient() const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int p = static_cast<int>(i), bucket = partition_.bucket_of(p);
    const ShardRange& range = owned_[bucket];
    const int64_t begin = std::max(partition_.offset(p), range.begin), end = std::min(partition_.offset(p) + specs_[i].numel(), range.end);
    if (begin < end && !owned_gradients(bucket).narrow(0, begin - range.begin, end - begin).isfinite().all().item<bool>()) return p;
  }
  return static_cast<int64_t>(parameters_.size());
}

void FlatModel::set_frozen(Parameter& parameter, bool frozen) {
  parameter.frozen = frozen;
  parameter.tensor.set_requires_grad(!frozen);
  find_updates();
}

void FlatModel::find_updates() {
  updates_.clear();
  for (int b = 0; b < buckets(); ++b) {
    const auto& members = partition_.buckets()[b].parameters;
    const ShardRange& range = owned_[b];
    if (std::none_of(members.begin(), members.end(), [&](int i) { return parameters_[i]->frozen; })) {
      if (range.size() > 0) updates_.push_back({b, 0, range.size(), range.decay_end - range.begin});
      continue;
    }
    for (const int i : members) {
      const int64_t begin = std::max(partition_.offset(i), range.begin), end = std::min(partition_.offset(i) + specs_[i].numel(), range.end);
      if (!parameters_[i]->frozen && begin < end) updates_.push_back({b, begin - range.begin, end - begin, specs_[i].decay ? end - begin : 0});
    }
  }
}

void FlatModel::rebuild(const std::vector<int>& order) {
  MUSTER_CHECK(!shards_state());
  const Partition old = partition_;
  partition_ = Partition(specs_, order, options_.partition);
  params_ = relayout(params_, old);
  grads_ = relayout(grads_, old);
  lay_out();
}

at::Tensor FlatModel::relayout(const at::Tensor& old_buffer, const Partition& old_partition) const {
  at::Tensor moved = at::zeros({partition_.size()}, old_buffer.options());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const int p = static_cast<int>(i);
    moved.narrow(0, partition_.offset(p), specs_[i].numel()).copy_(old_buffer.narrow(0, old_partition.offset(p), specs_[i].numel()));
  }
  return moved;
}

void FlatModel::hook_autograd(Parameter& parameter) {
  MUSTER_CHECK(!shards_parameters());
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<TakeGradient>(parameter));
}

}  // namespace muster::sharding
