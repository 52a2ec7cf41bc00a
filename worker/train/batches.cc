#include "worker/train/batches.h"

#include <ATen/ops/empty.h>

#include "worker/train/device.h"

namespace muster::worker {

Batch make_batch(const TokenStream& stream, const std::vector<int64_t>& starts, int64_t seq_length, int64_t first_sample, at::Device device) {
  const auto rows = static_cast<int64_t>(starts.size());
  at::Tensor both = at::empty({2, rows, seq_length}, at::TensorOptions().dtype(at::kLong));
  int64_t* tokens = both.mutable_data_ptr<int64_t>();
  int64_t* targets = tokens + rows * seq_length;
  for (int64_t i = 0; i < rows; ++i) {
    stream.read(starts[i], seq_length, tokens + i * seq_length);
    stream.read(starts[i] + 1, seq_length, targets + i * seq_length);
  }
  if (!device.is_cpu()) both = pinned(both, device).to(device, at::kLong, true);
  return {both[0], both[1], first_sample};
}

}  // namespace muster::worker
