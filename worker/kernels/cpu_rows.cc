#include "worker/kernels/cpu_rows.h"

#include <algorithm>

#include "worker/kernels/cpu_vector_math.h"
#include "worker/kernels/philox.h"

namespace muster::worker::kernels {
namespace {

constexpr double kLayerNormEps = 1e-5;

// Four draws a Philox block; this many blocks at once keep the vector units full.
constexpr int kDrawBlocks = 16, kDraws = 4 * kDrawBlocks;

MUSTER_CLONES void draw(const DropoutRow& row, uint64_t first_block, uint32_t* __restrict draws) {
  const uint64_t key = row.key, sample = row.sample;
  for (int b = 0; b < kDrawBlocks; ++b) {
    const PhiloxBlock block = philox(key, sample, first_block + b);
    for (int i = 0; i < 4; ++i) draws[4 * b + i] = block.v[i];
  }
}

template <typename T>
MUSTER_INLINE void dropout_loop(const DropoutRow& row, const T* __restrict x, T* __restrict y, int64_t n) {
  const T scale = static_cast<T>(row.scale);
  const uint32_t threshold = row.threshold;
  alignas(64) uint32_t draws[kDraws];
  for (int64_t at = 0; at < n; at += kDraws, x += kDraws, y += kDraws) {
    draw(row, static_cast<uint64_t>(at / 4), draws);
    const int64_t count = std::min<int64_t>(kDraws, n - at);
    for (int64_t i = 0; i < count; ++i) y[i] = draws[i] >= threshold ? x[i] * scale : T(0);
  }
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
MUSTER_INLINE void layer_norm_backward_loop(const LayerNormRow<T>& row, const T* __restrict g, const T* __restrict past, const T* __restrict x, T mean, T rstd,
                                            T* __restrict dx, T* __restrict d_weight, T* __restrict d_bias) {
  const int64_t n = row.width;
  const T* __restrict w = row.weight;
  const T mean_h = lane_sum<T>(n, [&](int64_t i) { return g[i] * w[i]; }) / static_cast<T>(n);
  const T mean_hz = lane_sum<T>(n, [&](int64_t i) { return g[i] * w[i] * ((x[i] - mean) * rstd); }) / static_cast<T>(n);
  const auto write = [&](auto before) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; ++i) {
      const T z = (x[i] - mean) * rstd;
      d_weight[i] += g[i] * z;
      d_bias[i] += g[i];
      dx[i] = before(i) + rstd * (g[i] * w[i] - mean_h - z * mean_hz);
    }
  };
  if (past) {
    write([&](int64_t i) { return past[i]; });
  } else {
    write([](int64_t) { return T(0); });
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

// The normal distribution function: 0.5 + x P(x^2) / Q(x^2) for |x| <= 5.4, a weighted least-squares fit whose error in float32 is
// rounding. Beyond, the nearest of 0 and 1.
MUSTER_INLINE float normal_cdf(float x) {
  constexpr float kEdge = 5.4f;
  const float c = x < -kEdge ? -kEdge : x > kEdge ? kEdge : x, s = c * c;
  float p = 2.359077910796259e-08f;
  p = p * s + 6.323764409899013e-06f;
  p = p * s + 1.6069946286734194e-04f;
  p = p * s + 4.628990776836872e-03f;
  p = p * s + 3.3029794692993164e-02f;
  p = p * s + 3.989422619342804e-01f;
  float q = 1.2198207741676015e-06f;
  q = q * s + 7.11744069121778e-05f;
  q = q * s + 1.8386797746643424e-03f;
  q = q * s + 2.818034216761589e-02f;
  q = q * s + 2.494598776102066e-01f;
  q = q * s + 1.0f;
  return x < -kEdge ? 0.0f : x > kEdge ? 1.0f : 0.5f + c * (p / q);
}
double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }

// The same and the density times x.
MUSTER_INLINE float normal_cdf(float x, float& x_density) {
  const Erfc e = erfc_of(std::fabs(x) * 0.70710678f);
  x_density = x * e.gauss * 0.39894228f;
  return x < 0 ? 0.5f * e.erfc : 1.0f - 0.5f * e.erfc;
}
double normal_cdf(double x, double& x_density) {
  x_density = x * std::exp(-0.5 * x * x) * 0.39894228040143267794;
  return normal_cdf(x);
}

}  // namespace

MUSTER_CLONES void adamw_range(float* w, const float* g, float* m, float* v, int64_t n, const AdamWFactors<float>& f, float decay) {
  adamw_loop(w, g, m, v, n, f, decay);
}
void adamw_range(double* w, const double* g, double* m, double* v, int64_t n, const AdamWFactors<double>& f, double decay) {
  adamw_loop(w, g, m, v, n, f, decay);
}

MUSTER_CLONES void dropout_row(const DropoutRow& row, const float* x, float* y, int64_t n) { dropout_loop(row, x, y, n); }
void dropout_row(const DropoutRow& row, const double* x, double* y, int64_t n) { dropout_loop(row, x, y, n); }

MUSTER_CLONES double square_sum(const float* x, int64_t n) {
  return lane_sum<double>(n, [&](int64_t i) { return static_cast<double>(x[i]) * x[i]; });
}
double square_sum(const double* x, int64_t n) {
  return lane_sum<double>(n, [&](int64_t i) { return x[i] * x[i]; });
}

double cross_entropy_row(float* row, int64_t n, int64_t target, float scale) {
  if (target < 0) return std::fill_n(row, n, 0.0f), 0.0;
  const float top = vector_max(row, n), wanted = row[target];
  const float sum = vector_exp_sum(row, n, 1.0f, top);
  vector_scale(row, n, scale / sum);
  row[target] -= scale;
  return std::log(static_cast<double>(sum)) - (static_cast<double>(wanted) - top);
}
double cross_entropy_row(double* row, int64_t n, int64_t target, double scale) {
  if (target < 0) return std::fill_n(row, n, 0.0), 0.0;
  const double top = *std::max_element(row, row + n), wanted = row[target];
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row[i] = std::exp(row[i] - top);
  for (int64_t i = 0; i < n; ++i) row[i] *= scale / sum;
  row[target] -= scale;
  return std::log(sum) - (wanted - top);
}

double cross_entropy_loss(const float* row, int64_t n, int64_t target) {
  if (target < 0) return 0;
  const float top = vector_max(row, n);
  return std::log(static_cast<double>(vector_sum_of_exp(row, n, top))) - (static_cast<double>(row[target]) - top);
}
double cross_entropy_loss(const double* row, int64_t n, int64_t target) {
  if (target < 0) return 0;
  const double top = *std::max_element(row, row + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - top);
  return std::log(sum) - (row[target] - top);
}

MUSTER_CLONES void gelu_range(const float* __restrict x, float* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_cdf(x[i]);
}
void gelu_range(const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_cdf(x[i]);
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
