#include "worker/models/initialize.h"

#include <cmath>
#include <numbers>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "worker/kernels/philox.h"

namespace muster::worker {
namespace {

// Two normals from one Philox block (Box and Muller, 1958), in double.
void fill_normal(double* out, int64_t n, double std, uint64_t key) {
  for (int64_t i = 0; i < n; i += 2) {
    const auto bits = philox(key, static_cast<uint64_t>(i / 2), 0);
    const double radius = std * std::sqrt(-2.0 * std::log(uniform01(bits.v[0])));
    const double angle = 2.0 * std::numbers::pi * uniform01(bits.v[1]);
    out[i] = radius * std::cos(angle);
    if (i + 1 < n) out[i + 1] = radius * std::sin(angle);
  }
}

at::Tensor initial_values(const sharding::Parameter& p, uint64_t seed) {
  at::Tensor values = at::empty({p.numel()}, at::TensorOptions().dtype(at::kDouble));
  if (p.init.kind == sharding::Init::Kind::kConstant) {
    values.fill_(p.init.value);
  } else {
    fill_normal(values.mutable_data_ptr<double>(), p.numel(), p.init.value, philox_key(seed, p.name.c_str()));
  }
  return values.view(p.shape);
}

}  // namespace

void initialize_parameter(sharding::Parameter& parameter, uint64_t seed) {
  const c10::AutoGradMode no_graph(false);
  parameter.tensor.copy_(initial_values(parameter, seed));
}

}  // namespace muster::worker
