#pragma once
// Float32 loops over a row, for the CPU kernels. Each result is the same for any alignment: sums run over fixed lanes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// One function, three code paths: AVX-512, AVX2, plain x86-64; chosen once, when the program is loaded.
#define MUSTER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define MUSTER_INLINE inline __attribute__((always_inline))

namespace muster::worker::kernels {

constexpr int kLanes = 16;

// Sum of f(i) for i < n over fixed lanes.
template <typename T, typename F>
MUSTER_INLINE T lane_sum(int64_t n, F&& f) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += f(i + l);
  T sum = 0;
  for (const T lane : lanes) sum += lane;
  return sum;
}

// exp for x <= 0: Cody-Waite reduction to [-ln2/2, ln2/2], a degree-6 Taylor polynomial, exponent put back as bits.
// Relative error below 2e-7; 0 below -87.
MUSTER_INLINE float exp_negative(float x) {
  const float clamped = std::max(x, -87.0f);
  const float n = std::nearbyint(clamped * 1.44269504f);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : p * power;
}

float vector_max(const float* x, int64_t n);                                  // n >= 1
float vector_dot(const float* x, const float* y, int64_t n);
void vector_scale(float* x, int64_t n, float factor);
float vector_exp_sum(float* x, int64_t n, float scale, float top);  // x = exp(scale * (x - top)); returns the sum
float vector_sum_of_exp(const float* x, int64_t n, float top);      // sum of exp(x - top), x unchanged

}  // namespace muster::worker::kernels
