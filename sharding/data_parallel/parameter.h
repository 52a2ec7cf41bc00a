#pragma once
// One trainable tensor, as the model, the reducer and the optimizer share it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/collective/communicator.h"

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
  Init init;
  bool decay = false;  // weight decay applies (matrices and embeddings; not norms and biases)
  int uses = 1;        // operations that each report a gradient in one backward pass (2 for a tied embedding)
  bool frozen = false; // takes part in no backward pass

  at::Tensor tensor;   // leaf of autograd
  at::Tensor grad;     // sum over the micro-batches of this step so far; undefined content until has_grad
  bool has_grad = false;
  int reported = 0;    // in the present backward pass
  comm::WorkPtr arriving;  // set while other ranks' parts of the value are on their way
  std::function<void(Parameter&)> on_complete;  // set by the reducer: all `uses` have reported

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }

  // The value, whole: waits for what is still arriving (on a GPU the current stream does). Operations take it from here.
  const at::Tensor& use();

  // Adds g (any float dtype, this shape) to the gradient and reports it.
  void add_gradient(const at::Tensor& g);

  // For operations that write the gradient themselves: true when grad already holds a part of the sum and must be added to,
  // false when it must be overwritten. Ends with report().
  bool accumulates() const { return has_grad; }
  void report();
};

}  // namespace muster::sharding
