#include "worker/precision/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace muster::worker {
namespace {

constexpr double kFactor = 2;

double first_scale(const RunConfig& c) {
  if (c.precision != "fp16") return 1;
  return c.fp16_loss_scale > 0 ? c.fp16_loss_scale : std::exp2(static_cast<double>(c.fp16_initial_scale_power));
}

}  // namespace

LossScaler::LossScaler(const RunConfig& c)
    : dynamic_(c.precision == "fp16" && c.fp16_loss_scale == 0),
      consecutive_hysteresis_(c.fp16_consecutive_hysteresis),
      lowest_(c.fp16_min_loss_scale),
      window_(c.fp16_loss_scale_window),
      hysteresis_(c.fp16_hysteresis),
      scale_(first_scale(c)),
      hysteresis_left_(c.fp16_hysteresis) {}

void LossScaler::update(bool finite) {
  if (!dynamic_) return;
  if (!finite) {
    if (hysteresis_left_ > 1) {
      --hysteresis_left_;
    } else {
      scale_ = std::max(scale_ / kFactor, lowest_);
    }
    last_overflow_ = steps_;
  } else {
    if (consecutive_hysteresis_) hysteresis_left_ = hysteresis_;
    if ((steps_ - last_overflow_) % window_ == 0) {
      hysteresis_left_ = hysteresis_;
      scale_ *= kFactor;
    }
  }
  ++steps_;
}

}  // namespace muster::worker
