#include "worker/optim/adamw.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/kernels/kernels.h"

namespace muster::worker {

AdamW::AdamW(sharding::FlatModel& model, const sharding::Reducer& reducer, const RunConfig& config)
    : model_(model),
      reducer_(reducer),
      beta1_(config.adam_beta1),
      beta2_(config.adam_beta2),
      eps_(config.adam_eps),
      weight_decay_(config.weight_decay) {
  const at::Tensor parameters = model.param_buffer();
  const bool own_master = c10::elementSize(parameters.scalar_type()) >= 4;
  int64_t size = 0;
  std::vector<at::Tensor> parts;
  for (const auto& range : reducer.owned()) {
    size += range.size();
    parts.push_back(parameters.narrow(0, range.begin, range.size()));
  }
  if (!own_master) master_ = at::cat(parts).to(at::kFloat);
  m_ = at::zeros({size}, parameters.options().dtype(own_master ? parameters.scalar_type() : at::kFloat));
  v_ = at::zeros_like(m_);
}

void AdamW::step(const at::Tensor& grad_scale, double lr) {
  const c10::AutoGradMode no_graph(false);
  const kernels::AdamWStep values{lr, beta1_, beta2_, eps_, weight_decay_, ++steps_};
  int64_t at = 0;  // in the state buffers
  for (const auto& range : reducer_.owned()) {
    const auto of_model = [&](const at::Tensor& t) { return t.narrow(0, range.begin, range.size()); };
    const auto of_state = [&](const at::Tensor& t) { return t.narrow(0, at, range.size()); };
    const at::Tensor parameters = of_model(model_.param_buffer());
    kernels::adamw(master_.defined() ? of_state(master_) : parameters, of_model(model_.grad_buffer()), of_state(m_), of_state(v_),
                   master_.defined() ? parameters : at::Tensor(), range.decay_end - range.begin, grad_scale, values);
    at += range.size();
  }
}

int64_t AdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor* t : {&master_, &m_, &v_}) {
    if (t->defined()) bytes += static_cast<int64_t>(t->nbytes());
  }
  return bytes;
}

void AdamW::relayout(const sharding::Partition& old_partition) {
  MUSTER_CHECK(!reducer_.shards_optimizer());
  for (at::Tensor* t : {&master_, &m_, &v_}) {
    if (t->defined()) *t = model_.relayout(*t, old_partition);
  }
}

}  // namespace muster::worker
