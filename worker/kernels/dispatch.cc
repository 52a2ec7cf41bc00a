#include "worker/kernels/dispatch.h"

#include "worker/kernels/check_arguments.h"

namespace muster::worker::kernels {
namespace {

const KernelTable& table_of(const at::Tensor& t) {
  if (t.is_cpu()) return cpu_table();
  MUSTER_CHECK(t.is_cuda());
  MUSTER_CHECK(cuda_table().dropout != nullptr);  // register_cuda_kernels() was not called
  return cuda_table();
}

void check_logits(const at::Tensor& logits, const at::Tensor& targets) {
  check_float(logits);
  MUSTER_CHECK_EQ(logits.dim(), 2);
  MUSTER_CHECK(targets.is_contiguous() && targets.scalar_type() == at::kLong && targets.device() == logits.device());
  MUSTER_CHECK_EQ(targets.numel(), logits.size(0));
}

}  // namespace

KernelTable& cuda_table() {
  static KernelTable table;
  return table;
}

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  check_float(x);
  MUSTER_CHECK(key.p >= 0 && key.p < 1);
  return table_of(x).dropout(x, key);
}

void adamw(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor v, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
           const AdamWStep& step) {
  check_float(master);
  MUSTER_CHECK_LE(size_t{4}, c10::elementSize(master.scalar_type()));
  check_like(m, master);
  check_like(v, master);
  check_vector(grad, master.numel(), master);
  check_vector(model, master.numel(), master);
  check_vector(grad_scale, 1, master);
  MUSTER_CHECK(grad_scale.scalar_type() == master.scalar_type());
  MUSTER_CHECK(decay_elements >= 0 && decay_elements <= master.numel() && step.step >= 1);
  table_of(master).adamw(master, grad, m, v, model, decay_elements, grad_scale, step);
}

at::Tensor sum_of_squares(const at::Tensor& x) {
  check_float(x);
  return table_of(x).sum_of_squares(x);
}

at::Tensor cross_entropy_in_place(at::Tensor logits, const at::Tensor& targets, double gradient_scale) {
  MUSTER_CHECK_LT(0.0, gradient_scale);
  check_logits(logits, targets);
  return table_of(logits).cross_entropy(logits, targets, gradient_scale);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  check_logits(logits, targets);
  return table_of(logits).cross_entropy(logits, targets, 0);
}

at::Tensor gelu(const at::Tensor& x) {
  check_float(x);
  return table_of(x).gelu(x);
}

at::Tensor gelu_backward(const at::Tensor& grad_out, const at::Tensor& x) {
  check_like(grad_out, x);
  return table_of(x).gelu_backward(grad_out, x);
}

LayerNormOut residual_layer_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  check_float(residual);
  MUSTER_CHECK_EQ(residual.dim(), 2);
  if (x.defined()) check_like(x, residual);
  MUSTER_CHECK(weight.defined());
  for (const at::Tensor* t : {&weight, &bias}) check_vector_of(*t, residual.size(1), residual, residual.scalar_type());
  return table_of(residual).residual_layer_norm(residual, x, weight, bias);
}

at::Tensor residual_layer_norm_backward(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum, const at::Tensor& mean,
                                        const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight, at::Tensor grad_bias) {
  MUSTER_CHECK_EQ(sum.dim(), 2);
  check_like(grad_normed, sum);
  if (grad_sum_in.defined()) check_like(grad_sum_in, sum);
  MUSTER_CHECK(mean.defined() && rstd.defined() && weight.defined());
  for (const at::Tensor* t : {&mean, &rstd}) check_vector_of(*t, sum.size(0), sum, wide_type(sum));
  check_vector_of(weight, sum.size(1), sum, sum.scalar_type());
  check_vector(grad_weight, sum.size(1), sum);
  check_vector(grad_bias, sum.size(1), sum);
  return table_of(sum).residual_layer_norm_backward(grad_normed, grad_sum_in, sum, mean, rstd, weight, grad_weight, grad_bias);
}

}  // namespace muster::worker::kernels
