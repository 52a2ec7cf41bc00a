#include "comm/collective/nccl/sharing.h"

#include <map>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/collective/nccl/nccl_api.h"

namespace muster::comm::nccl {

std::string version_text(int version) { return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100); }

void check_version(int loaded, int compiled, const std::string& path) {
  if (loaded / 10000 != compiled / 10000) {
    refuse("NCCL: found version {} ({}), wanted {}.x: Muster was compiled against {}", version_text(loaded), path, compiled / 10000, version_text(compiled));
  }
  if (loaded / 100 < compiled / 100) log_warn("NCCL {} ({}) is older than the {} that Muster was compiled against", version_text(loaded), path, version_text(compiled));
}

void check_sharing(const std::vector<std::string>& gpus, int nccl_version, bool multi_rank_enabled) {
  constexpr int kFirstThatShares = 23200;
  std::map<std::string, size_t> owner;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto [at, fresh] = owner.emplace(gpus[rank], rank);
    if (fresh || (multi_rank_enabled && nccl_version >= kFirstThatShares)) continue;
    refuse("ranks {} and {} both use {}, wanted one GPU a rank; start fewer ranks, or, for tests only, let them share it with NCCL >= {} (found {}) and "
           "NCCL_MULTI_RANK_GPU_ENABLE=1 (found {})",
           at->second, rank, gpus[rank], version_text(kFirstThatShares), version_text(nccl_version), multi_rank_enabled ? "1" : "not set");
  }
}

}  // namespace muster::comm::nccl
