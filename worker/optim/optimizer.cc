#include "worker/optim/optimizer.h"

#include "worker/optim/flat_optimizer.h"

namespace muster::worker {

std::unique_ptr<Optimizer> make_optimizer(sharding::DataParallel& parallel, const RunConfig& config) {
  return std::make_unique<FlatOptimizer>(parallel.flat(), make_rule(config), config.offload_optimizer);
}

}  // namespace muster::worker
