#pragma once

#include <vector>

#include "worker/data/dataset.h"
#include "worker/train/training_step.h"

namespace muster::worker {

// The sequences that begin at `starts`, as tokens and next-token targets (B, T) on the device. Copied asynchronously where the
// device allows it.
Batch make_batch(const TokenStream& stream, const std::vector<int64_t>& starts, int64_t seq_length, int64_t first_sample, at::Device device);

}  // namespace muster::worker
