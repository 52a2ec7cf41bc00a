#pragma once

#include <string>
#include <vector>

namespace muster::comm::nccl {

// gpus: each rank's GPU, by rank. Two ranks on one GPU: InputError naming both, the GPU, what was found and what to do, unless NCCL
// can do it: multi_rank_enabled and version >= 2.32 (23200).
void check_sharing(const std::vector<std::string>& gpus, int nccl_version, bool multi_rank_enabled);

}  // namespace muster::comm::nccl
