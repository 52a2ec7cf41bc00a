#pragma once

#include "sharding/mesh/mesh.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// How the configuration cuts `world_size` ranks. InputError naming the keys where that cannot be.
inline sharding::MeshSizes mesh_sizes(const RunConfig& config, int world_size) {
  return sharding::cut_ranks(world_size, 1, 1, config.zero_stage == 0 ? 1 : static_cast<int>(config.zero_shard_size));
}

}  // namespace muster::worker
