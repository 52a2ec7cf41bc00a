#pragma once

#include <vector>

#include "worker/data/batch_loader.h"
#include "worker/train/training_step.h"

namespace muster::worker {

// A micro-batch that the loader has read, on the device. Copied asynchronously where the device allows it.
Batch make_batch(const BatchLoader::MicroBatch& read, int64_t seq_length, at::Device device);

// The sequences that begin at `starts`, as tokens and next-token targets (B, T) on the device.
Batch make_batch(const TokenStream& stream, const std::vector<int64_t>& starts, int64_t seq_length, at::Device device);

}  // namespace muster::worker
