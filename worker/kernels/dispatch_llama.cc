#include "worker/kernels/dispatch_llama.h"

#include <cmath>

#include <ATen/ops/empty.h>

#include "worker/kernels/check_arguments.h"

namespace muster::worker::kernels {
namespace {

const LlamaTable& table_of(const at::Tensor& t) {
  if (t.is_cpu()) return cpu_llama_table();
  MUSTER_CHECK(t.is_cuda());
  MUSTER_CHECK(cuda_llama_table().rotary != nullptr);  // register_cuda_kernels() was not called
  return cuda_llama_table();
}

}  // namespace

LlamaTable& cuda_llama_table() {
  static LlamaTable table;
  return table;
}

RmsNormOut residual_rms_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_float(residual);
  MUSTER_CHECK_EQ(residual.dim(), 2);
  if (x.defined()) check_like(x, residual);
  MUSTER_CHECK(weight.defined() && eps >= 0);
  check_vector_of(weight, residual.size(1), residual, residual.scalar_type());
  return table_of(residual).residual_rms_norm(residual, x, weight, eps);
}

at::Tensor residual_rms_norm_backward(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                      const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight) {
  MUSTER_CHECK_EQ(sum.dim(), 2);
  check_like(grad_normed, sum);
  if (grad_sum_in.defined()) check_like(grad_sum_in, sum);
  MUSTER_CHECK(rstd.defined() && weight.defined());
  check_vector_of(rstd, sum.size(0), sum, wide_type(sum));
  check_vector_of(weight, sum.size(1), sum, sum.scalar_type());
  check_vector(grad_weight, sum.size(1), sum);
  return table_of(sum).residual_rms_norm_backward(grad_normed, grad_sum_in, sum, rstd, weight, grad_weight);
}

at::Tensor swiglu(const at::Tensor& x) {
  check_float(x);
  MUSTER_CHECK_EQ(x.dim(), 2);
  MUSTER_CHECK_EQ(x.size(1) % 2, 0);
  return table_of(x).swiglu(x);
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x) {
  check_float(grad);
  check_float(x);
  MUSTER_CHECK(x.dim() == 2 && grad.dim() == 2 && grad.device() == x.device());
  check_dtype(grad, x.scalar_type());
  MUSTER_CHECK(grad.size(0) == x.size(0) && 2 * grad.size(1) == x.size(1));
  return table_of(x).swiglu_backward(grad, x);
}

at::Tensor rotary_table(int64_t length, int64_t head_width, double base, at::TensorOptions options) {
  MUSTER_CHECK(length > 0 && head_width > 0 && head_width % 2 == 0 && base > 0);
  at::Tensor table = at::empty({length, head_width}, at::kDouble);
  double* to = table.mutable_data_ptr<double>();
  const int64_t pairs = head_width / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const double turn = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_width));
    for (int64_t t = 0; t < length; ++t) {
      to[t * head_width + i] = std::cos(static_cast<double>(t) * turn);
      to[t * head_width + pairs + i] = std::sin(static_cast<double>(t) * turn);
    }
  }
  return table.to(options);
}

at::Tensor rotary(const at::Tensor& x, const at::Tensor& table, const Rotary& how) {
  check_float(x);
  check_float(table);
  check_dtype(table, wide_type(x));
  MUSTER_CHECK(x.dim() == 2 && table.dim() == 2 && table.device() == x.device());
  MUSTER_CHECK(table.size(0) > 0 && table.size(1) > 0 && table.size(1) % 2 == 0);
  MUSTER_CHECK_EQ(x.size(0) % table.size(0), 0);
  MUSTER_CHECK(how.heads >= 0 && how.heads * table.size(1) <= x.size(1));
  return table_of(x).rotary(x, table, how);
}

}  // namespace muster::worker::kernels
