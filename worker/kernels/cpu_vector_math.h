#pragma once
// Float32 loops over a row, for the CPU kernels. Each result is the same for any alignment: sums run over fixed lanes.

#include <cstdint>

namespace muster::worker::kernels {

float vector_max(const float* x, int64_t n);                                  // n >= 1
float vector_dot(const float* x, const float* y, int64_t n);
void vector_scale(float* x, int64_t n, float factor);
float vector_exp_sum(float* x, int64_t n, float scale, float top);  // x = exp(scale * (x - top)); returns the sum

}  // namespace muster::worker::kernels
