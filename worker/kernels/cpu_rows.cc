#include "worker/kernels/cpu_rows.h"

#include <algorithm>

#include "worker/kernels/cpu_vector_math.h"

namespace muster::worker::kernels {
namespace {

constexpr double kLayerNormEps = 1e-5;
constexpr int kLanes = 16;
#define MUSTER_INLINE inline __attribute__((always_inline))

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

template <typename T>
MUSTER_INLINE void adamw_loop(T* __restrict w, const T* __restrict g, T* __restrict m, T* __restrict v, int64_t n, const AdamWFactors<T>& f, T decay) {
  const T rest1 = 1 - f.beta1, rest2 = 1 - f.beta2;
  for (int64_t i = 0; i < n; ++i) {
    const T grad = g[i] * f.grad_scale;
    m[i] = f.beta1 * m[i] + rest1 * grad;
    v[i] = f.beta2 * v[i] + rest2 * grad * grad;
    w[i] = w[i] * decay - f.step_size * m[i] / (std::sqrt(v[i]) * f.inverse_correction2 + f.eps);
  }
}

template <typename T>
MUSTER_INLINE void layer_norm_loop(const LayerNormRow<T>& row, const T* x, T* y, T& mean, T& rstd) {
  const int64_t n = row.width;
  const T center = lane_sum<T>(n, [&](int64_t i) { return x[i]; }) / static_cast<T>(n);
  const T variance = lane_sum<T>(n, [&](int64_t i) { return (x[i] - center) * (x[i] - center); }) / static_cast<T>(n);
  const T scale = static_cast<T>(1) / std::sqrt(variance + static_cast<T>(kLayerNormEps));
  if (row.bias) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * scale * row.weight[i] + row.bias[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - center) * scale * row.weight[i];
  }
  mean = center;
  rstd = scale;
}

// Ba, Kiros and Hinton, "Layer normalization" (2016), differentiated: with h = g * weight and z the normed row,
// dx = rstd * (h - mean(h) - z * mean(h z)).
template <typename T>
MUSTER_INLINE void layer_norm_backward_loop(const LayerNormRow<T>& row, const T* g, const T* past, const T* x, T mean, T rstd, T* dx, T* d_weight, T* d_bias) {
  const int64_t n = row.width;
  const T* w = row.weight;
  const T mean_h = lane_sum<T>(n, [&](int64_t i) { return g[i] * w[i]; }) / static_cast<T>(n);
  const T mean_hz = lane_sum<T>(n, [&](int64_t i) { return g[i] * w[i] * ((x[i] - mean) * rstd); }) / static_cast<T>(n);
  for (int64_t i = 0; i < n; ++i) {
    const T z = (x[i] - mean) * rstd;
    d_weight[i] += g[i] * z;
    d_bias[i] += g[i];
    dx[i] = rstd * (g[i] * w[i] - mean_h - z * mean_hz);
  }
  if (past) {
    for (int64_t i = 0; i < n; ++i) dx[i] += past[i];
  }
}

// exp(-z * z) and erfc(z) of z >= 0. erfc(z) = exp(-z * z) * t * P(t), t = 1 / (1 + 0.4 z); P is a weighted least-squares fit over
// z in [0, 9.4]; relative error below 3e-7.
struct Erfc {
  float gauss, erfc;
};
MUSTER_INLINE Erfc erfc_of(float z) {
  const float t = 1.0f / (1.0f + 0.4f * z);
  float p = -0.0316292978823185f;
  p = p * t + 0.2089615911245346f;
  p = p * t - 0.5243094563484192f;
  p = p * t + 0.5811086297035217f;
  p = p * t - 0.3121020793914795f;
  p = p * t + 0.28681373596191406f;
  p = p * t + 0.12462640553712845f;
  p = p * t + 0.21599338948726654f;
  p = p * t + 0.22482359409332275f;
  p = p * t + 0.22571347653865814f;
  const float gauss = exp_negative(-z * z);
  return {gauss, gauss * t * p};
}

// The normal distribution function and its density times x.
MUSTER_INLINE float normal_cdf(float x, float& x_density) {
  const Erfc e = erfc_of(std::fabs(x) * 0.70710678f);
  x_density = x * e.gauss * 0.39894228f;
  return x < 0 ? 0.5f * e.erfc : 1.0f - 0.5f * e.erfc;
}
double normal_cdf(double x, double& x_density) {
  x_density = x * std::exp(-0.5 * x * x) * 0.39894228040143267794;
  return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

}  // namespace

MUSTER_CLONES void adamw_range(float* w, const float* g, float* m, float* v, int64_t n, const AdamWFactors<float>& f, float decay) {
  adamw_loop(w, g, m, v, n, f, decay);
}
void adamw_range(double* w, const double* g, double* m, double* v, int64_t n, const AdamWFactors<double>& f, double decay) {
  adamw_loop(w, g, m, v, n, f, decay);
}

MUSTER_CLONES double square_sum(const float* x, int64_t n) {
  return lane_sum<double>(n, [&](int64_t i) { return static_cast<double>(x[i]) * x[i]; });
}
double square_sum(const double* x, int64_t n) {
  return lane_sum<double>(n, [&](int64_t i) { return x[i] * x[i]; });
}

double cross_entropy_row(float* row, int64_t n, int64_t target) {
  if (target < 0) return std::fill_n(row, n, 0.0f), 0.0;
  const float top = vector_max(row, n), wanted = row[target];
  const float sum = vector_exp_sum(row, n, 1.0f, top);
  vector_scale(row, n, 1.0f / sum);
  row[target] -= 1.0f;
  return std::log(static_cast<double>(sum)) - (static_cast<double>(wanted) - top);
}
double cross_entropy_row(double* row, int64_t n, int64_t target) {
  if (target < 0) return std::fill_n(row, n, 0.0), 0.0;
  const double top = *std::max_element(row, row + n), wanted = row[target];
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row[i] = std::exp(row[i] - top);
  for (int64_t i = 0; i < n; ++i) row[i] /= sum;
  row[target] -= 1.0;
  return std::log(sum) - (wanted - top);
}

MUSTER_CLONES void gelu_range(const float* __restrict x, float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float unused;
    y[i] = x[i] * normal_cdf(x[i], unused);
  }
}
void gelu_range(const double* x, double* y, int64_t n) {
  double unused;
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_cdf(x[i], unused);
}

MUSTER_CLONES void gelu_backward_range(const float* __restrict g, const float* __restrict x, float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float x_density;
    const float cdf = normal_cdf(x[i], x_density);
    y[i] = g[i] * (cdf + x_density);
  }
}
void gelu_backward_range(const double* g, const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    double x_density;
    const double cdf = normal_cdf(x[i], x_density);
    y[i] = g[i] * (cdf + x_density);
  }
}

MUSTER_CLONES void add_row(const float* a, const float* b, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}
void add_row(const double* a, const double* b, double* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = a[i] + b[i];
}

MUSTER_CLONES void layer_norm_row(const LayerNormRow<float>& row, const float* x, float* y, float& mean, float& rstd) {
  layer_norm_loop(row, x, y, mean, rstd);
}
void layer_norm_row(const LayerNormRow<double>& row, const double* x, double* y, double& mean, double& rstd) {
  layer_norm_loop(row, x, y, mean, rstd);
}
MUSTER_CLONES void layer_norm_row_backward(const LayerNormRow<float>& row, const float* g, const float* past, const float* x, float mean, float rstd,
                                           float* dx, float* d_weight, float* d_bias) {
  layer_norm_backward_loop(row, g, past, x, mean, rstd, dx, d_weight, d_bias);
}
void layer_norm_row_backward(const LayerNormRow<double>& row, const double* g, const double* past, const double* x, double mean, double rstd,
                             double* dx, double* d_weight, double* d_bias) {
  layer_norm_backward_loop(row, g, past, x, mean, rstd, dx, d_weight, d_bias);
}

}  // namespace muster::worker::kernels
