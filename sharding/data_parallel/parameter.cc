#include "sharding/data_parallel/parameter.h"

namespace muster::sharding {

void Parameter::add_gradient(const at::Tensor& g) {
  if (has_grad) {
    grad.add_(g);
  } else {
    grad.copy_(g);
  }
  report();
}

void Parameter::report() {
  has_grad = true;
  if (++reported == uses && on_complete) on_complete(*this);
}

}  // namespace muster::sharding
