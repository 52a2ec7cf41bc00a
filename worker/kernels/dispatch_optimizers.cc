#include "worker/kernels/dispatch_optimizers.h"

#include <ATen/ops/empty_like.h>

#include "worker/kernels/check_arguments.h"
#include "worker/kernels/matmul.h"

namespace muster::worker::kernels {
namespace {

const OptimizerTable& table_of(const at::Tensor& t) {
  if (t.is_cpu()) return cpu_optimizer_table();
  MUSTER_CHECK(t.is_cuda());
  MUSTER_CHECK(cuda_optimizer_table().lion != nullptr);  // register_cuda_kernels() was not called
  return cuda_optimizer_table();
}

void check_wide(const at::Tensor& t) {
  MUSTER_CHECK(t.defined());
  check_float(t);
  MUSTER_CHECK_LE(size_t{4}, c10::elementSize(t.scalar_type()));
}

void check_update(const at::Tensor& master, const at::Tensor& grad, const at::Tensor& model, int64_t decay_elements, const at::Tensor& grad_scale) {
  check_wide(master);
  MUSTER_CHECK(grad.defined() && grad_scale.defined());
  check_vector(grad, master.numel(), master);
  check_vector(model, master.numel(), master);
  check_vector_of(grad_scale, 1, master, master.scalar_type());
  MUSTER_CHECK(decay_elements >= 0 && decay_elements <= master.numel());
}

void check_moment(const EightBitMoment& moment, const at::Tensor& like) {
  MUSTER_CHECK(moment.codes.defined() && moment.codes.is_contiguous() && moment.codes.device() == like.device());
  check_dtype(moment.codes, at::kByte);
  MUSTER_CHECK_EQ(moment.codes.numel(), like.numel());
  MUSTER_CHECK(moment.scales.defined());
  check_vector_of(moment.scales, (like.numel() + kEightBitBlock - 1) / kEightBitBlock, like, at::kFloat);
}

}  // namespace

OptimizerTable& cuda_optimizer_table() {
  static OptimizerTable table;
  return table;
}

void sgd_momentum(at::Tensor master, at::Tensor grad, at::Tensor momentum, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                  const SgdStep& step) {
  check_update(master, grad, model, decay_elements, grad_scale);
  check_like(momentum, master);
  table_of(master).sgd_momentum(master, grad, momentum, model, decay_elements, grad_scale, step);
}

void lion(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale, const LionStep& step) {
  check_update(master, grad, model, decay_elements, grad_scale);
  check_like(m, master);
  table_of(master).lion(master, grad, m, model, decay_elements, grad_scale, step);
}

void adamw_8bit(at::Tensor master, at::Tensor grad, const EightBitMoment& m, const EightBitMoment& v, at::Tensor model, int64_t decay_elements,
                const at::Tensor& grad_scale, const AdamWStep& step) {
  check_update(master, grad, model, decay_elements, grad_scale);
  check_moment(m, master);
  check_moment(v, master);
  MUSTER_CHECK_LE(1, step.step);
  table_of(master).adamw_8bit(master, grad, m, v, model, decay_elements, grad_scale, step);
}

void encode_8bit(const at::Tensor& values, const EightBitMoment& to, bool is_signed) {
  check_wide(values);
  check_moment(to, values);
  table_of(values).encode_8bit(values, to, is_signed);
}

at::Tensor decode_8bit(const EightBitMoment& from, bool is_signed) {
  MUSTER_CHECK(from.codes.defined());
  check_moment(from, from.codes);
  return table_of(from.codes).decode_8bit(from, is_signed);
}

at::Tensor muon_orthogonalize(const at::Tensor& g, int steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  check_wide(g);
  MUSTER_CHECK_EQ(g.dim(), 2);
  MUSTER_CHECK_LE(0, steps);
  if (g.numel() == 0) return at::empty_like(g);
  const bool tall = g.size(0) > g.size(1);  // the products below are then of the smaller size
  at::Tensor x = tall ? g.t().contiguous() : g;
  // By the largest element first, so that no square underflows or overflows; the norm is then 1 or more, or 0.
  x = x.div(x.abs().max().clamp_min(1e-38));
  x.div_(sum_of_squares(x).sqrt_().clamp_min_(1.0).to(x.scalar_type()));
  for (int i = 0; i < steps; ++i) {
    const at::Tensor gram = matmul_nt(x, x);
    const at::Tensor factor = matmul_nn(gram, gram).mul_(kC).add_(gram, kB);
    x = matmul_nn(factor, x).add_(x, kA);
  }
  return tall ? x.t().contiguous() : x;
}

}  // namespace muster::worker::kernels
