#include "worker/models/recompute.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace muster::worker::ops {
namespace {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The state of a GPU's generator, which fused attention with dropout draws from. Nothing on the CPU, where no operation draws.
class GeneratorState {
 public:
  explicit GeneratorState(at::Device device) : device_(device) {
    if (!device.is_cpu()) state_ = locked([](at::Generator& g) { return g.get_state(); });
  }
  // Runs body from this state, then goes on from where the generator was.
  void replay(const std::function<void()>& body) const {
    if (!state_.defined()) return body();
    const at::Tensor now = locked([](at::Generator& g) { return g.get_state(); });
    locked([&](at::Generator& g) { return g.set_state(state_), at::Tensor(); });
    body();
    locked([&](at::Generator& g) { return g.set_state(now), at::Tensor(); });
  }

 private:
  at::Tensor locked(const std::function<at::Tensor(at::Generator&)>& body) const {
    at::Generator generator = at::globalContext().defaultGenerator(device_);
    const std::lock_guard lock(generator.mutex());
    return body(generator);
  }
  const at::Device device_;
  at::Tensor state_;
};

struct RecomputeNode : torch::autograd::Node {
  RecomputeNode(Piece p, at::Device device) : piece(std::move(p)), generator(device) {}

  variable_list apply(variable_list&& grads) override {
    variable_list inputs;
    for (SavedVariable& s : saved) {
      const at::Tensor value = s.unpack();
      inputs.push_back(value.defined() ? value.detach().set_requires_grad(value.requires_grad()) : at::Tensor());
    }
    TensorList outputs;
    generator.replay([&] {
      const c10::AutoGradMode graph(true);
      outputs = piece(inputs);
    });
    variable_list roots, root_grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_grads.push_back(grads[i]);
    }
    torch::autograd::backward(roots, root_grads);
    variable_list input_grads;
    for (const at::Tensor& input : inputs) input_grads.push_back(input.defined() ? input.grad() : at::Tensor());
    return input_grads;
  }
  void release_variables() override { saved.clear(); }

  const Piece piece;
  const GeneratorState generator;
  std::vector<SavedVariable> saved;
};

at::Device device_of(const TensorList& inputs) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const at::Tensor& t) { return t.defined(); });
  return first->device();
}

}  // namespace

TensorList recompute(const Piece& piece, const TensorList& inputs) {
  if (!c10::GradMode::is_enabled()) return piece(inputs);
  auto node = std::make_shared<RecomputeNode>(piece, device_of(inputs));
  for (const at::Tensor& input : inputs) {
    node->add_next_edge(input.defined() && input.requires_grad() ? torch::autograd::impl::gradient_edge(input) : Edge());
    node->saved.emplace_back(input, false);
  }
  TensorList outputs;
  {
    const c10::AutoGradMode no_graph(false);
    outputs = piece(inputs);
  }
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
  return outputs;
}

}  // namespace muster::worker::ops
