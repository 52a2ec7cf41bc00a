#include "sharding/data_parallel/parameter.h"

#include <utility>

namespace muster::sharding {

const at::Tensor& Parameter::use() {
  if (const comm::WorkPtr work = std::exchange(arriving, nullptr)) work->wait();
  return tensor;
}

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
