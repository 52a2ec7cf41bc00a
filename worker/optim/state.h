#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/flat_model.h"

namespace muster::worker {

// The dtype in which a model's parameters are updated.
at::ScalarType master_dtype_of(const sharding::FlatModel& model);

// One bucket's optimizer state: named tensors that may live in pinned host memory between steps.
//
// Threads: the training thread.
class BucketState {
 public:
  // offload: keep in host memory (no effect where the model is there anyway).
  BucketState(at::Device device, bool offload) : device_(device), offload_(offload && !device.is_cpu()) {}
  // A new tensor; returns its number.
  int add(at::Tensor value);
  // On the device, for an update that ends with put_back(). A copy under way is ordered before what follows on the stream.
  std::vector<at::Tensor> take() const;
  void put_back(const std::vector<at::Tensor>& values);
  int64_t bytes() const;

 private:
  at::Device device_;
  bool offload_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace muster::worker
