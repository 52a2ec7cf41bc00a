#include "worker/train/evaluate.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "comm/base/error.h"
#include "worker/train/batches.h"

namespace muster::worker {
namespace {

// Any constant that keeps validation positions apart from the training order of the same seed.
constexpr uint64_t kValidationSeed = 0x76616c;

std::vector<int64_t> validation_starts(const RunConfig& config, int64_t stream_size) {
  std::vector<int64_t> starts;
  if (config.eval_iters == 0) {
    for (int64_t at = 0; at + config.seq_length < stream_size; at += config.seq_length) starts.push_back(at);
  } else {
    const int64_t count = config.eval_iters * config.global_batch_size;
    for (int64_t i = 0; i < count; ++i) {
      starts.push_back(sample_start(static_cast<uint64_t>(config.seed) ^ kValidationSeed, i, stream_size, config.seq_length));
    }
  }
  return starts;
}

}  // namespace

double evaluate(const RunConfig& config, const TokenStream& stream, Model& model, sharding::DataParallel& parallel, at::Device device) {
  const c10::AutoGradMode no_graph(false);
  const auto starts = validation_starts(config, stream.size());
  at::Tensor totals = at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(device));
  comm::Communicator& world = parallel.groups().world();
  const auto stride = static_cast<size_t>(config.micro_batch_size);
  for (size_t round = 0; round < starts.size(); round += stride * world.size()) {
    parallel.begin_forward();  // in every round on every rank: a pass may be collective
    const size_t first = round + stride * world.rank();
    if (first >= starts.size()) continue;
    const std::vector<int64_t> mine(starts.begin() + static_cast<int64_t>(first),
                                    starts.begin() + static_cast<int64_t>(std::min(first + stride, starts.size())));
    const Batch batch = make_batch(stream, mine, config.seq_length, device);
    totals[0].add_(model.loss(batch.tokens, batch.targets, {}).squeeze());
    totals[1].add_(batch.targets.ge(0).sum());
  }
  parallel.end_forward();
  world.all_reduce(totals)->wait();
  totals = totals.to(at::kCPU);
  const double* values = totals.const_data_ptr<double>();
  MUSTER_CHECK_LT(0.0, values[1]);
  return values[0] / values[1];
}

}  // namespace muster::worker
