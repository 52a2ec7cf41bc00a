#include "worker/kernels/cpu_vector_math.h"

#include <algorithm>

namespace muster::worker::kernels {

MUSTER_CLONES float vector_max(const float* x, int64_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = lanes[l] > x[i + l] ? lanes[l] : x[i + l];
  }
  for (; i < n; ++i) lanes[0] = lanes[0] > x[i] ? lanes[0] : x[i];
  return *std::max_element(lanes, lanes + kLanes);
}

MUSTER_CLONES float vector_dot(const float* x, const float* y, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * y[i + l];
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += x[i + l] * y[i + l];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

MUSTER_CLONES void vector_scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

MUSTER_CLONES float vector_exp_sum(float* x, int64_t n, float scale, float top) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp_negative(scale * (x[i] - top));
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += x[i + l];
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += x[i + l];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

MUSTER_CLONES float vector_sum_of_exp(const float* x, int64_t n, float top) {
  float lanes[kLanes] = {}, rest[kLanes];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += exp_negative(x[i + l] - top);
  }
  if (i < n) {
    for (int l = 0; l < kLanes; ++l) rest[l] = i + l < n ? x[i + l] - top : -1000.0f;  // whose exp is 0
    for (int l = 0; l < kLanes; ++l) lanes[l] += exp_negative(rest[l]);
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace muster::worker::kernels
