#include "sharding/data_parallel/flat_model.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

std::vector<ParameterSpec> specs_of(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const Parameter* p : parameters) specs.push_back({p->name, p->shape, p->numel(), p->decay});
  return specs;
}

PartitionOptions with_element_bytes(PartitionOptions options, at::ScalarType dtype) {
  options.element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  return options;
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

FlatModel::FlatModel(std::vector<Parameter*> parameters, at::Device device, at::ScalarType param_dtype, at::ScalarType grad_dtype,
                     PartitionOptions options)
    : parameters_(std::move(parameters)),
      specs_(specs_of(parameters_)),
      options_(with_element_bytes(options, grad_dtype)),
      partition_(specs_, reverse_registration_order(static_cast<int>(specs_.size())), options_),
      param_buffer_(at::zeros({partition_.size()}, at::TensorOptions().dtype(param_dtype).device(device))),
      grad_buffer_(at::zeros({partition_.size()}, at::TensorOptions().dtype(grad_dtype).device(device))) {
  point_parameters();
}

void FlatModel::point_parameters() {
  const c10::AutoGradMode no_graph(false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    const int64_t offset = partition_.offset(static_cast<int>(i));
    const at::Tensor view = param_buffer_.narrow(0, offset, p.numel()).view(p.shape);
    if (p.tensor.defined()) {
      p.tensor.set_data(view);  // keeps the leaf and its hooks
    } else {
      p.tensor = view.detach();
      p.tensor.set_requires_grad(!p.frozen);
    }
    p.grad = grad_buffer_.narrow(0, offset, p.numel()).view(p.shape);
  }
}

Partition FlatModel::rebuild(const std::vector<int>& order) {
  Partition old = partition_;
  partition_ = Partition(specs_, order, options_);
  param_buffer_ = relayout(param_buffer_, old);
  grad_buffer_ = relayout(grad_buffer_, old);
  point_parameters();
  return old;
}

at::Tensor FlatModel::relayout(const at::Tensor& old_buffer, const Partition& old_partition) const {
  at::Tensor moved = at::zeros({partition_.size()}, old_buffer.options());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const int p = static_cast<int>(i);
    moved.narrow(0, partition_.offset(p), specs_[i].numel).copy_(old_buffer.narrow(0, old_partition.offset(p), specs_[i].numel));
  }
  return moved;
}

void FlatModel::hook_autograd(Parameter& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<TakeGradient>(parameter));
}

at::Tensor FlatModel::grad_bucket(int bucket) const {
  const auto& b = partition_.buckets()[bucket];
  return grad_buffer_.narrow(0, b.begin, b.size());
}

}  // namespace muster::sharding
