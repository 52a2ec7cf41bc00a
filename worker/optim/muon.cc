#include "worker/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/kernels/optimizers.h"

namespace muster::worker {

Muon::Muon(sharding::DataParallel& parallel, const RunConfig& config)
    : parallel_(parallel),
      model_(parallel.flat()),
      momentum_(config.muon_momentum),
      weight_decay_(config.weight_decay),
      offload_(config.offload_optimizer),
      rest_(make_rule_named("adamw", config)) {
  reset();
}

void Muon::reset() {
  MUSTER_CHECK_EQ(steps_, 0);
  const c10::AutoGradMode no_graph(false);
  segments_.assign(model_.buckets(), {});
  for (int b = 0; b < model_.buckets(); ++b) add_segments(b);
}

void Muon::add_segments(int bucket) {
  const sharding::ShardRange& range = model_.owned()[bucket];
  for (const int i : model_.partition().buckets()[bucket].parameters) {
    const sharding::Parameter& p = *model_.parameters()[i];
    const int64_t offset = model_.partition().offset(i);
    const int64_t begin = std::max(offset, range.begin), end = std::min(offset + p.numel(), range.end);
    if (begin >= end) continue;
    Segment segment{i, bucket, begin - range.begin, end - begin, begin - offset, BucketState(model_.grad_options().device(), offload_)};
    const at::Tensor values = model_.owned_parameters(bucket).narrow(0, segment.begin, segment.size);
    const at::TensorOptions options = values.options().dtype(master_dtype());
    if (has_master()) segment.state.add(values.to(master_dtype()));
    if (p.hidden_matrix) {
      segment.state.add(at::zeros({segment.size}, options));
    } else {
      rest_->add_state(segment.state, segment.size, options);
    }
    segments_[bucket].push_back(std::move(segment));
  }
}

void Muon::step(const at::Tensor& grad_scale, double lr) {
  const c10::AutoGradMode no_graph(false);
  const UpdateStep step{grad_scale, lr, ++steps_};
  for (int b = 0; b < model_.buckets(); ++b) step_bucket(b, step);
}

void Muon::step_bucket(int bucket, const UpdateStep& step) {
  const auto& members = model_.partition().buckets()[bucket].parameters;
  const bool matrices = std::any_of(members.begin(), members.end(), [&](int i) { return model_.parameters()[i]->hidden_matrix; });
  const at::Tensor momentum = matrices ? gathered_momentum(bucket, step) : at::Tensor();  // on every rank of the shard group
  for (Segment& s : segments_[bucket]) {
    const sharding::Parameter& p = *model_.parameters()[s.parameter];
    if (p.frozen) continue;
    p.hidden_matrix ? step_matrix(s, momentum, step) : step_other(s, step);
  }
}

// Moves the momentum on, and returns Nesterov's g + momentum * m of the whole bucket, zero outside hidden matrices.
at::Tensor Muon::gathered_momentum(int bucket, const UpdateStep& step) {
  const at::Tensor finite = step.grad_scale.isfinite();
  at::Tensor owned = at::zeros({model_.owned()[bucket].size()}, step.grad_scale.options());
  for (Segment& s : segments_[bucket]) {
    const sharding::Parameter& p = *model_.parameters()[s.parameter];
    if (!p.hidden_matrix || p.frozen) continue;
    const auto state = s.state.take();
    const at::Tensor m = state.back();
    const at::Tensor g = model_.owned_gradients(bucket).narrow(0, s.begin, s.size).to(master_dtype()).mul(step.grad_scale);
    m.copy_(at::where(finite, m.mul(momentum_).add_(g), m));
    owned.narrow(0, s.begin, s.size).copy_(g.add_(m, momentum_));
    s.state.put_back(state);
  }
  if (!model_.shards_state()) return owned;
  at::Tensor whole = at::zeros({model_.partition().buckets()[bucket].size()}, owned.options());
  parallel_.groups().shard().all_gather(whole, owned)->wait();
  return whole;
}

void Muon::step_matrix(Segment& s, const at::Tensor& whole_momentum, const UpdateStep& step) {
  const sharding::Parameter& p = *model_.parameters()[s.parameter];
  const int64_t offset = model_.partition().offset(s.parameter) - model_.partition().buckets()[s.bucket].begin;
  const at::Tensor direction = kernels::muon_orthogonalize(whole_momentum.narrow(0, offset, p.numel()).view(p.shape)).reshape({-1}).narrow(0, s.at, s.size);
  const double size = 0.2 * std::sqrt(static_cast<double>(std::max(p.shape[0], p.shape[1])));
  const auto state = s.state.take();
  const at::Tensor values = model_.owned_parameters(s.bucket).narrow(0, s.begin, s.size), master = has_master() ? state[0] : values;
  const at::Tensor next = master.mul(1 - step.lr * (p.decay ? weight_decay_ : 0)).sub_(direction, step.lr * size);
  master.copy_(at::where(step.grad_scale.isfinite(), next, master));
  if (has_master()) values.copy_(master);
  s.state.put_back(state);
}

void Muon::step_other(Segment& s, const UpdateStep& step) {
  const auto state = s.state.take();
  const at::Tensor values = model_.owned_parameters(s.bucket).narrow(0, s.begin, s.size);
  UpdateSlice slice;
  slice.grad = model_.owned_gradients(s.bucket).narrow(0, s.begin, s.size);
  slice.master = has_master() ? state[0] : values;
  if (has_master()) slice.model = values;
  slice.decay = model_.parameters()[s.parameter]->decay ? s.size : 0;
  slice.state.assign(state.begin() + (has_master() ? 1 : 0), state.end());
  rest_->apply(slice, step);
  s.state.put_back(state);
}

int64_t Muon::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& bucket : segments_) {
    for (const Segment& s : bucket) bytes += s.state.bytes();
  }
  return bytes;
}

}  // namespace muster::worker
