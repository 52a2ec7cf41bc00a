#pragma once
// One trainable tensor, as the model, the reducer and the optimizer share it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::sharding {

// How a parameter starts: normal(0, std) drawn from (seed, name, element), or a constant.
struct Init {
  enum class Kind { kNormal, kConstant } kind = Kind::kConstant;
  double value = 0;  // standard deviation, or the constant
  static Init normal(double std) { return {Kind::kNormal, std}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
};

// Gradients never pass through the `.grad` of autograd: the operation that computes one writes it straight into the flat
// gradient buffer and then reports it. An operation that only autograd knows is bridged by FlatModel::hook_autograd.
//
// Threads: the training thread, and autograd's thread during a backward pass; never both at once.
// Ownership: `tensor` and `grad` are views of FlatModel's buffers.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // empty: contiguous; else any order of the dimensions without gaps (channels last, say)
  Init init;
  bool decay = false;   // weight decay applies (matrices and embeddings; not norms and biases)
  bool hidden_matrix = false;  // (rows, cols) of a block, not an embedding or head: what Muon is for
  int unit = 0;         // parameters that a forward pass needs together: a block, the embedding, the end
  int uses = 1;         // operations that each report a gradient in one backward pass (2 for a tied embedding)
  bool frozen = false;  // takes part in no backward pass and no update; FlatModel::set_frozen changes it between steps

  at::Tensor tensor;    // leaf of autograd. With ZeRO-3 empty while the value is not here: take it from use()
  at::Tensor grad;      // sum over micro-batches so far; undefined content until has_grad. Take it from gradient()
  bool has_grad = false;
  int reported = 0;     // since the reducer began
  int passes = 1;       // backward passes after which it is complete
  int index = -1;       // in the model's list

  // Where a backward pass leaves the work on weight gradients for later (zero-bubble pipelines); null: it does it at once.
  std::vector<std::function<void()>>* deferred = nullptr;

  // Set by the gatherer and the reducer.
  std::function<void(Parameter&)> before_use, before_gradient, on_complete;

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }

  // The value, whole: waits for what is still arriving (on a GPU the current stream does). Operations take it from here in the
  // forward pass and again in the backward pass, and keep no copy in between: with ZeRO-3 it is freed there.
  const at::Tensor& use();

  // Adds g (any float dtype, this shape) to the gradient and reports it.
  void add_gradient(const at::Tensor& g);

  // For operations that write the gradient themselves: where to, and whether it already holds a part of the sum and must be
  // added to (else it must be overwritten). They end with report().
  at::Tensor& gradient();
  bool accumulates() const { return has_grad; }
  void report();
};

}  // namespace muster::sharding
