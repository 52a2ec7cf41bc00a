#pragma once
// What the configuration means for the parts of sharding/ that know no LibTorch.

#include "sharding/mesh/mesh.h"
#include "sharding/plan/memory_plan.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// How the configuration cuts `world_size` ranks. InputError naming the keys where that cannot be.
sharding::MeshSizes mesh_sizes(const RunConfig& config, int world_size);

// For sharding::plan_memory. vocab_size: of the data, or config.vocab_size. The configuration has been finalized.
sharding::MemoryInput memory_input(const RunConfig& config, int world_size, int64_t vocab_size);

}  // namespace muster::worker
