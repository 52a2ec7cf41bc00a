#pragma once

#include "sharding/data_parallel/data_parallel.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

namespace muster::worker {

// Mean loss over the validation part: config.eval_iters global batches at positions that are a function of the seed, or, with
// 0, every whole sequence once. Ranks take micro-batches in turn; sums and counts are reduced. Collective; the same value on
// every rank. Blocks.
double evaluate(const RunConfig& config, const TokenStream& stream, Model& model, sharding::DataParallel& parallel, at::Device device);

}  // namespace muster::worker
