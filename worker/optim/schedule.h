#pragma once

#include "worker/config/run_config.h"

namespace muster::worker {

// Learning rate of step `step` (0-based; step 0 is the first update): linear warm-up over lr_warmup_iters, then lr_decay_style
// down to min_lr at lr_decay_iters, min_lr after that. As nanoGPT's get_lr for cosine.
double learning_rate(const RunConfig& config, int64_t step);

}  // namespace muster::worker
