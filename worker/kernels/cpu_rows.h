#pragma once
// Loops over a row or a range, float32 (vectorised, three code paths by processor) and float64 (exact library functions).
// Each result is the same for any number of threads: sums run over fixed lanes.

#include <cmath>
#include <cstdint>

#include "worker/kernels/kernels.h"

namespace muster::worker::kernels {

template <typename T>
struct AdamWFactors {
  AdamWFactors(const AdamWStep& s, T scale)
      : grad_scale(scale),
        beta1(static_cast<T>(s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        step_size(static_cast<T>(s.lr / (1.0 - std::pow(s.beta1, static_cast<double>(s.step))))),
        inverse_correction2(static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step))))),
        eps(static_cast<T>(s.eps)),
        decay(static_cast<T>(1.0 - s.lr * s.weight_decay)) {}
  T grad_scale, beta1, beta2, step_size, inverse_correction2, eps, decay;
};
void adamw_range(float* w, const float* g, float* m, float* v, int64_t n, const AdamWFactors<float>& f, float decay);
void adamw_range(double* w, const double* g, double* m, double* v, int64_t n, const AdamWFactors<double>& f, double decay);

// One sample's row of dropout (see kernels.h): element e is kept where draw e of (key, sample) is at least threshold.
struct DropoutRow {
  uint64_t key, sample;
  uint32_t threshold;
  double scale;
};
void dropout_row(const DropoutRow& row, const float* x, float* y, int64_t n);
void dropout_row(const DropoutRow& row, const double* x, double* y, int64_t n);

double square_sum(const float* x, int64_t n);
double square_sum(const double* x, int64_t n);

// -log softmax(row)[target], and the row becomes the gradient; target < 0: zero and a zero row.
double cross_entropy_row(float* row, int64_t n, int64_t target, float scale);
double cross_entropy_row(double* row, int64_t n, int64_t target, double scale);
// The same without the gradient.
double cross_entropy_loss(const float* row, int64_t n, int64_t target);
double cross_entropy_loss(const double* row, int64_t n, int64_t target);

void gelu_range(const float* x, float* y, int64_t n);
void gelu_range(const double* x, double* y, int64_t n);
void gelu_backward_range(const float* g, const float* x, float* y, int64_t n);
void gelu_backward_range(const double* g, const double* x, double* y, int64_t n);

void add_row(const float* a, const float* b, float* sum, int64_t n);
void add_row(const double* a, const double* b, double* sum, int64_t n);

template <typename T>
struct LayerNormRow {
  const T* weight;
  const T* bias;  // may be null
  int64_t width;
};
void layer_norm_row(const LayerNormRow<float>& row, const float* x, float* y, float& mean, float& rstd);
void layer_norm_row(const LayerNormRow<double>& row, const double* x, double* y, double& mean, double& rstd);
// dx = (past or 0) + gradient of x; adds g * normed into d_weight and g into d_bias.
void layer_norm_row_backward(const LayerNormRow<float>& row, const float* g, const float* past, const float* x, float mean, float rstd, float* dx,
                             float* d_weight, float* d_bias);
void layer_norm_row_backward(const LayerNormRow<double>& row, const double* g, const double* past, const double* x, double mean, double rstd,
                             double* dx, double* d_weight, double* d_bias);

}  // namespace muster::worker::kernels
