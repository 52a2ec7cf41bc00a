#pragma once
// The parameters and gradients of a model in flat buffers: whole, or this rank's shard of every bucket.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/parameter.h"
#include "sharding/plan/partition.h"

namespace muster::sharding {

// | zero_stage | parameters | gradients | optimizer state |      (Rajbhandari et al., SC20)
// | 0          | whole      | whole     | whole           |
// | 1          | whole      | whole     | shard           |
// | 2          | whole      | shard     | shard           |
// | 3          | shard      | shard     | shard           |
struct FlatOptions {
  at::Device device = at::kCPU;
  at::ScalarType param_dtype = at::kFloat, grad_dtype = at::kFloat;
  int zero_stage = 0;
  int shard = 0, shards = 1;  // this rank's among those that cut each bucket; 1 with stage 0
  PartitionOptions partition; // element_bytes, shards and by_unit are set from the rest
};

// A stretch of one bucket that the optimizer updates in one call.
struct UpdateRange {
  int bucket = 0;
  int64_t begin = 0, size = 0;  // elements of the bucket's owned part
  int64_t decay = 0;            // the first of them have weight decay
};

// Whole-bucket buffers that come and go. Reuses its memory; every buffer holds `elements`.
class BufferPool {
 public:
  BufferPool(int64_t elements, at::TensorOptions options) : elements_(elements), options_(options) {}
  at::Tensor take();
  void give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }
  int64_t bytes() const { return made_ * elements_ * static_cast<int64_t>(options_.dtype().itemsize()); }

 private:
  const int64_t elements_;
  const at::TensorOptions options_;
  std::vector<at::Tensor> free_;
  int64_t made_ = 0;
};

// Threads: the training thread. Ownership: holds the buffers; the parameters belong to the model and must outlive this.
class FlatModel {
 public:
  // Allocates the buffers and points every parameter's tensor and grad into what is whole. All values are zero.
  FlatModel(std::vector<Parameter*> parameters, FlatOptions options);

  const Partition& partition() const { return partition_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  int buckets() const { return static_cast<int>(partition_.buckets().size()); }
  at::ScalarType param_dtype() const { return options_.param_dtype; }
  at::TensorOptions grad_options() const { return grads_.options(); }
  bool shards_state() const { return options_.zero_stage > 0; }
  bool shards_gradients() const { return options_.zero_stage > 1; }
  bool shards_parameters() const { return options_.zero_stage > 2; }

  // What this rank owns of a bucket: it steps the optimizer there, and nobody else of its shard group does.
  const std::vector<ShardRange>& owned() const { return owned_; }
  at::Tensor owned_parameters(int bucket) const;
  at::Tensor owned_gradients(int bucket) const;
  // All owned gradients, in as few tensors as they lie in.
  std::vector<at::Tensor> owned_gradients() const;
  // Index of the first parameter with a non-finite element in what this rank owns of its gradient; the number of parameters where
  // there is none. Waits for the device.
  int64_t first_nonfinite_gradient() const;
  // By bucket, frozen parameters left out.
  const std::vector<UpdateRange>& updates() const { return updates_; }
  // Between steps.
  void set_frozen(Parameter& parameter, bool frozen);

  // A bucket, whole: a part of the buffer, or what is attached to it.
  const at::Tensor& whole_parameters(int bucket) const { return whole_params_[bucket]; }
  const at::Tensor& whole_gradients(int bucket) const { return whole_grads_[bucket]; }
  // Where a kind is sharded: lends the bucket a pool buffer, at which its parameters then point; takes it back off them.
  at::Tensor attach_parameters(int bucket, const at::Tensor& buffer);
  void detach_parameters(int bucket);
  at::Tensor attach_gradients(int bucket, const at::Tensor& buffer);
  void detach_gradients(int bucket);

  BufferPool& param_pool() { return param_pool_; }
  BufferPool& grad_pool() { return grad_pool_; }

  // Lays the whole buffers out anew in the given order of parameters, with their content (stage 0 only).
  void rebuild(const std::vector<int>& order);

  // For a parameter whose gradient only autograd computes: takes it over from AccumulateGrad. Not with stage 3, since autograd
  // keeps the value.
  void hook_autograd(Parameter& parameter);

  // Bytes of the persistent buffers, and of the pools.
  int64_t param_bytes() const { return static_cast<int64_t>(params_.nbytes()); }
  int64_t grad_bytes() const { return static_cast<int64_t>(grads_.nbytes()); }
  int64_t pool_bytes() const { return param_pool_.bytes() + grad_pool_.bytes(); }

 private:
  void lay_out();
  at::Tensor relayout(const at::Tensor& old_buffer, const Partition& old_partition) const;
  void find_updates();
  at::Tensor view_of(const Parameter& parameter, const at::Tensor& bucket_buffer) const;
  void point_values(int bucket);
  void point_gradients(int bucket);

  const std::vector<Parameter*> parameters_;
  const std::vector<ParameterSpec> specs_;
  const FlatOptions options_;
  Partition partition_;
  std::vector<ShardRange> owned_;
  std::vector<UpdateRange> updates_;
  at::Tensor params_, grads_;  // whole, or owned parts one after the other
  std::vector<at::Tensor> whole_params_, whole_grads_;  // by bucket; undefined while not here
  BufferPool param_pool_, grad_pool_;
};

}  // namespace muster::sharding
