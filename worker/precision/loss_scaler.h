#pragma once

#include <cstdint>

#include "worker/config/run_config.h"

namespace muster::worker {

// The factor that keeps fp16 gradients of a mean loss in range: constant (fp16.loss_scale > 0), or dynamic as DeepSpeed's (its keys and
// defaults): halved after `hysteresis` steps whose gradients are not finite, doubled after `loss_scale_window` steps without one.
// 1 for the other precisions. A value that all ranks compute alike, since all see the same global norm.
class LossScaler {
 public:
  explicit LossScaler(const RunConfig& config);
  double scale() const { return scale_; }
  void update(bool finite);

 private:
  const bool dynamic_, consecutive_hysteresis_;
  const double lowest_;
  const int64_t window_, hysteresis_;
  double scale_;
  int64_t steps_ = 0, last_overflow_ = -1, hysteresis_left_;
};

}  // namespace muster::worker
