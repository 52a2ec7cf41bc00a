#include "worker/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace muster::worker {

double learning_rate(const RunConfig& config, int64_t step) {
  const auto at = static_cast<double>(step), warmup = static_cast<double>(config.lr_warmup_iters);
  if (step < config.lr_warmup_iters) return config.lr * (at + 1) / (warmup + 1);
  if (config.lr_decay_style == "constant") return config.lr;
  const auto end = static_cast<double>(config.lr_decay_iters > 0 ? config.lr_decay_iters : config.train_iters);
  if (at >= end) return config.min_lr;
  const double progress = (at - warmup) / (end - warmup);
  const double share = config.lr_decay_style == "linear" ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return config.min_lr + share * (config.lr - config.min_lr);
}

}  // namespace muster::worker
