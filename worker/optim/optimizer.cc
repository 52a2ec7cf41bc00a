#include "worker/optim/optimizer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/kernels/kernels.h"

namespace muster::worker {

Optimizer::Optimizer(sharding::FlatModel& model, const RunConfig& config)
    : model_(model),
      beta1_(config.adam_beta1),
      beta2_(config.adam_beta2),
      eps_(config.adam_eps),
      weight_decay_(config.weight_decay) {
  const bool own_master = c10::elementSize(model.param_dtype()) >= 4;
  std::vector<at::Tensor> parts;
  for (int b = 0; b < model.buckets(); ++b) parts.push_back(model.owned_parameters(b));
  if (!own_master) master_ = at::cat(parts).to(at::kFloat);
  const int64_t size = model.owned().empty() ? 0 : model.owned().back().at + model.owned().back().size();
  m_ = at::zeros({size}, model.grad_options().dtype(own_master ? model.param_dtype() : at::kFloat));
  v_ = at::zeros_like(m_);
}

void Optimizer::step(const at::Tensor& grad_scale, double lr) {
  const c10::AutoGradMode no_graph(false);
  const kernels::AdamWStep values{lr, beta1_, beta2_, eps_, weight_decay_, ++steps_};
  for (const auto& update : model_.updates()) {
    const auto of_bucket = [&](const at::Tensor& t) { return t.narrow(0, update.begin, update.size); };
    const auto of_state = [&](const at::Tensor& t) { return t.narrow(0, model_.owned()[update.bucket].at + update.begin, update.size); };
    const at::Tensor parameters = of_bucket(model_.owned_parameters(update.bucket));
    kernels::adamw(master_.defined() ? of_state(master_) : parameters, of_bucket(model_.owned_gradients(update.bucket)), of_state(m_),
                   of_state(v_), master_.defined() ? parameters : at::Tensor(), update.decay, grad_scale, values);
  }
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor* t : {&master_, &m_, &v_}) {
    if (t->defined()) bytes += static_cast<int64_t>(t->nbytes());
  }
  return bytes;
}

void Optimizer::relayout(const sharding::Partition& old_partition) {
  MUSTER_CHECK(!model_.shards_state());
  for (at::Tensor* t : {&master_, &m_, &v_}) {
    if (t->defined()) *t = model_.relayout(*t, old_partition);
  }
}

}  // namespace muster::worker
