#include "worker/train/batches.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "worker/train/device.h"

namespace muster::worker {
namespace {

// Tokens and targets side by side, so that one copy moves both.
at::Tensor host_pair(int64_t rows, int64_t seq_length) { return at::empty({2, rows, seq_length}, at::TensorOptions().dtype(at::kLong)); }

Batch to_device(at::Tensor pair, int64_t first_sample, at::Device device) {
  if (!device.is_cpu()) pair = pinned(pair, device).to(device, at::kLong, true);
  return {pair[0], pair[1], first_sample};
}

}  // namespace

Batch make_batch(const BatchLoader::MicroBatch& read, int64_t seq_length, at::Device device) {
  const auto count = static_cast<int64_t>(read.tokens.size());
  const at::Tensor pair = host_pair(count / seq_length, seq_length);
  std::copy(read.tokens.begin(), read.tokens.end(), pair.mutable_data_ptr<int64_t>());
  std::copy(read.targets.begin(), read.targets.end(), pair.mutable_data_ptr<int64_t>() + count);
  return to_device(pair, read.first_sample, device);
}

Batch make_batch(const TokenStream& stream, const std::vector<int64_t>& starts, int64_t seq_length, at::Device device) {
  const auto rows = static_cast<int64_t>(starts.size());
  const at::Tensor pair = host_pair(rows, seq_length);
  int64_t* tokens = pair.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    stream.read(starts[i], seq_length, tokens + i * seq_length);
    stream.read(starts[i] + 1, seq_length, tokens + (rows + i) * seq_length);
  }
  return to_device(pair, 0, device);
}

}  // namespace muster::worker
