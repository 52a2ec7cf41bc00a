#include "worker/optim/adamw.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "worker/kernels/kernels.h"

namespace muster::worker {

AdamW::AdamW(sharding::FlatModel& model, const RunConfig& config)
    : model_(model), beta1_(config.adam_beta1), beta2_(config.adam_beta2), eps_(config.adam_eps), weight_decay_(config.weight_decay) {
  const at::Tensor parameters = model.param_buffer();
  const bool own_master = c10::elementSize(parameters.scalar_type()) >= 4;
  if (!own_master) master_ = parameters.to(at::kFloat);
  m_ = at::zeros_like(own_master ? parameters : master_);
  v_ = at::zeros_like(m_);
}

void AdamW::step(const at::Tensor& grad_scale, double lr) {
  const c10::AutoGradMode no_graph(false);
  const kernels::AdamWStep values{lr, beta1_, beta2_, eps_, weight_decay_, ++steps_};
  const at::Tensor parameters = model_.param_buffer(), grads = model_.grad_buffer();
  for (const auto& b : model_.partition().buckets()) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, b.begin, b.size()); };
    kernels::adamw(part(master_.defined() ? master_ : parameters), part(grads), part(m_), part(v_),
                   master_.defined() ? part(parameters) : at::Tensor(), b.decay_end - b.begin, grad_scale, values);
  }
}

void AdamW::relayout(const sharding::Partition& old_partition) {
  for (at::Tensor* t : {&master_, &m_, &v_}) {
    if (t->defined()) *t = model_.relayout(*t, old_partition);
  }
}

}  // namespace muster::worker
