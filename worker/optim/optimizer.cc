#include "worker/optim/optimizer.h"

#include "worker/optim/flat_optimizer.h"
#include "worker/optim/muon.h"

namespace muster::worker {

std::unique_ptr<Optimizer> make_optimizer(sharding::DataParallel& parallel, const RunConfig& config) {
  if (config.optimizer == "muon") return std::make_unique<Muon>(parallel, config);
  return std::make_unique<FlatOptimizer>(parallel.flat(), make_rule_named(config.optimizer, config), config.offload_optimizer);
}

}  // namespace muster::worker
