#include "worker/optim/state.h"

#include <ATen/ops/empty.h>

namespace muster::worker {

at::ScalarType master_dtype_of(const sharding::FlatModel& model) {
  return c10::elementSize(model.param_dtype()) >= 4 ? model.param_dtype() : at::kFloat;
}

int BucketState::add(at::Tensor value) {
  if (offload_) {
    at::Tensor host = at::empty(value.sizes(), value.options().device(at::kCPU).pinned_memory(true));
    host.copy_(value);
    value = host;
  }
  tensors_.push_back(std::move(value));
  return static_cast<int>(tensors_.size()) - 1;
}

std::vector<at::Tensor> BucketState::take() const {
  std::vector<at::Tensor> here;
  for (const at::Tensor& t : tensors_) here.push_back(offload_ ? t.to(device_, t.scalar_type(), true) : t);
  return here;
}

void BucketState::put_back(const std::vector<at::Tensor>& values) {
  if (!offload_) return;
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(values[i], true);
}

int64_t BucketState::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors_) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

}  // namespace muster::worker
