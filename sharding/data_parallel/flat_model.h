#pragma once
// The parameters and gradients of a model in flat buffers.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/parameter.h"
#include "sharding/data_parallel/partition.h"

namespace muster::sharding {

// Threads: the training thread. Ownership: holds the buffers; the parameters belong to the model and must outlive this.
// Memory: parameters (param_dtype) + gradients (grad_dtype), rounded up a parameter to 64 bytes.
class FlatModel {
 public:
  // Allocates the buffers on `device`, points every parameter's tensor and grad into them. All values are zero.
  // options.element_bytes is set from grad_dtype.
  FlatModel(std::vector<Parameter*> parameters, at::Device device, at::ScalarType param_dtype, at::ScalarType grad_dtype,
            PartitionOptions options);

  // Lays the buffers out anew in the given order of parameters. Returns the old partition: whoever keeps buffers of the same
  // layout (the optimizer) moves them with relayout().
  Partition rebuild(const std::vector<int>& order);
  // A buffer of this model's new layout with the old one's content.
  at::Tensor relayout(const at::Tensor& old_buffer, const Partition& old_partition) const;

  // For a parameter whose gradient only autograd computes: takes it over from AccumulateGrad.
  void hook_autograd(Parameter& parameter);

  const Partition& partition() const { return partition_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  at::Tensor param_buffer() const { return param_buffer_; }
  at::Tensor grad_buffer() const { return grad_buffer_; }
  at::Tensor grad_bucket(int bucket) const;

 private:
  void point_parameters();

  const std::vector<Parameter*> parameters_;
  const std::vector<ParameterSpec> specs_;
  PartitionOptions options_;
  Partition partition_;
  at::Tensor param_buffer_, grad_buffer_;
};

}  // namespace muster::sharding
