#include "sharding/data_parallel/parameter.h"

namespace muster::sharding {

const at::Tensor& Parameter::use() {
  if (before_use) before_use(*this);
  return tensor;
}

at::Tensor& Parameter::gradient() {
  if (before_gradient) before_gradient(*this);
  return grad;
}

void Parameter::add_gradient(const at::Tensor& g) {
  at::Tensor& sum = gradient();
  if (has_grad) {
    sum.add_(g);
  } else {
    sum.copy_(g);
  }
  report();
}

void Parameter::report() {
  has_grad = true;
  if (++reported == uses * passes && on_complete) on_complete(*this);
}

}  // namespace muster::sharding
