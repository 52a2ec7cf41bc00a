#pragma once
// A model in float64 (or another dtype) without a trainer around it.

#include <memory>
#include <stdexcept>
#include <string>

#include "sharding/data_parallel/flat_model.h"
#include "worker/models/initialize.h"
#include "worker/models/model.h"

namespace muster::worker::testing {

struct Built {
  explicit Built(const RunConfig& c, int64_t vocab = 11, at::ScalarType dtype = at::kDouble)
      : model(make_model(c, vocab)), flat(model->parameters(), options(dtype)) {
    for (sharding::Parameter* p : flat.parameters()) initialize_parameter(*p, 7);
  }
  at::Tensor parameter(const std::string& name) {
    for (sharding::Parameter* p : flat.parameters()) {
      if (p->name == name) return p->tensor;
    }
    throw std::out_of_range(name);
  }
  static sharding::FlatOptions options(at::ScalarType dtype) {
    sharding::FlatOptions o;
    o.param_dtype = o.grad_dtype = dtype;
    return o;
  }
  std::unique_ptr<Model> model;
  sharding::FlatModel flat;
};

}  // namespace muster::worker::testing
