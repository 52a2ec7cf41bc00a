// The CPU half of llama.h; types as in cpu_kernels.cc.

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "worker/kernels/cpu_common.h"
#include "worker/kernels/cpu_vector_math.h"
#include "worker/kernels/dispatch_llama.h"

namespace muster::worker::kernels {
namespace {

// ---- rows ----------------------------------------------------------------------------------------------------------

template <typename T>
MUSTER_INLINE T rms_norm_loop(const T* x, const T* __restrict weight, T* __restrict y, int64_t n, T eps) {
  const T squares = lane_sum<T>(n, [&](int64_t i) { return x[i] * x[i]; });
  const T rstd = T(1) / std::sqrt(squares / static_cast<T>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * weight[i];
  return rstd;
}

// With h = g * weight and z the normed row: dx = rstd * (h - z * mean(h z)).
template <typename T>
MUSTER_INLINE void rms_norm_backward_loop(const T* __restrict g, const T* __restrict past, const T* __restrict x, T rstd,
                                          const T* __restrict weight, T* __restrict dx, T* __restrict d_weight, int64_t n) {
  const T mean_hz = lane_sum<T>(n, [&](int64_t i) { return g[i] * weight[i] * (x[i] * rstd); }) / static_cast<T>(n);
  for (int64_t i = 0; i < n; ++i) {
    const T z = x[i] * rstd;
    d_weight[i] += g[i] * z;
    dx[i] = rstd * (g[i] * weight[i] - z * mean_hz);
  }
  if (past) {
    for (int64_t i = 0; i < n; ++i) dx[i] += past[i];
  }
}

MUSTER_INLINE float sigmoid(float x) {
  const float e = exp_negative(-std::abs(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}
MUSTER_INLINE double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <typename T>
MUSTER_INLINE void swiglu_loop(const T* __restrict gate, const T* __restrict up, T* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

template <typename T>
MUSTER_INLINE void swiglu_backward_loop(const T* __restrict g, const T* __restrict gate, const T* __restrict up,
                                        T* __restrict d_gate, T* __restrict d_up, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T s = sigmoid(gate[i]), silu = gate[i] * s;
    d_up[i] = g[i] * silu;
    d_gate[i] = g[i] * up[i] * (s + silu * (T(1) - s));
  }
}

// One head; sign -1 turns back.
template <typename T>
MUSTER_INLINE void turn_loop(const T* __restrict x, T* __restrict y, const T* __restrict cosines, const T* __restrict sines,
                             int64_t pairs, T sign, int64_t step, int64_t apart) {
  for (int64_t i = 0; i < pairs; ++i) {
    const T a = x[i * step], b = x[i * step + apart], c = cosines[i], s = sign * sines[i];
    y[i * step] = a * c - b * s;
    y[i * step + apart] = a * s + b * c;
  }
}

MUSTER_CLONES float rms_norm_row(const float* x, const float* weight, float* y, int64_t n, float eps) {
  return rms_norm_loop(x, weight, y, n, eps);
}
double rms_norm_row(const double* x, const double* weight, double* y, int64_t n, double eps) {
  return rms_norm_loop(x, weight, y, n, eps);
}

MUSTER_CLONES void rms_norm_row_backward(const float* g, const float* past, const float* x, float rstd, const float* w, float* dx,
                                         float* dw, int64_t n) {
  rms_norm_backward_loop(g, past, x, rstd, w, dx, dw, n);
}
void rms_norm_row_backward(const double* g, const double* past, const double* x, double rstd, const double* w, double* dx,
                           double* dw, int64_t n) {
  rms_norm_backward_loop(g, past, x, rstd, w, dx, dw, n);
}

MUSTER_CLONES void swiglu_row(const float* gate, const float* up, float* y, int64_t n) { swiglu_loop(gate, up, y, n); }
void swiglu_row(const double* gate, const double* up, double* y, int64_t n) { swiglu_loop(gate, up, y, n); }

MUSTER_CLONES void swiglu_row_backward(const float* g, const float* gate, const float* up, float* d_gate, float* d_up,
                                       int64_t n) {
  swiglu_backward_loop(g, gate, up, d_gate, d_up, n);
}
void swiglu_row_backward(const double* g, const double* gate, const double* up, double* d_gate, double* d_up, int64_t n) {
  swiglu_backward_loop(g, gate, up, d_gate, d_up, n);
}

MUSTER_CLONES void turn_halves(const float* x, float* y, const float* table, int64_t pairs, float sign) {
  turn_loop(x, y, table, table + pairs, pairs, sign, 1, pairs);
}
void turn_halves(const double* x, double* y, const double* table, int64_t pairs, double sign) {
  turn_loop(x, y, table, table + pairs, pairs, sign, 1, pairs);
}
MUSTER_CLONES void turn_neighbours(const float* x, float* y, const float* table, int64_t pairs, float sign) {
  turn_loop(x, y, table, table + pairs, pairs, sign, 2, 1);
}
void turn_neighbours(const double* x, double* y, const double* table, int64_t pairs, double sign) {
  turn_loop(x, y, table, table + pairs, pairs, sign, 2, 1);
}

// ---- tensors -------------------------------------------------------------------------------------------------------

template <typename F>
void for_rows(int64_t rows, int64_t width, F&& f) {
  at::parallel_for(0, rows, grain_for_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

RmsNormOut residual_rms_norm_cpu(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor r = wide(residual), b = wide(x), w = as(weight, r);
  const int64_t rows = r.size(0), width = r.size(1);
  const RmsNormOut out{x.defined() ? at::empty_like(r) : r, at::empty_like(r), at::empty({rows}, r.options())};
  by_type(r, [&](auto zero) {
    using T = decltype(zero);
    const T *from = data_of<T>(r), *branch = data_of<T>(b), *wp = data_of<T>(w);
    T *sum = data_of<T>(out.sum), *normed = data_of<T>(out.normed), *rstd = data_of<T>(out.rstd);
    for_rows(rows, width, [&](int64_t i) {
      if (branch) add_row(from + i * width, branch + i * width, sum + i * width, width);
      rstd[i] = rms_norm_row(sum + i * width, wp, normed + i * width, width, static_cast<T>(eps));
    });
    return 0;
  });
  if (is_half(residual)) return {x.defined() ? as(out.sum, residual) : residual, as(out.normed, residual), out.rstd};
  return out;
}

at::Tensor residual_rms_norm_backward_cpu(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                          const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight) {
  const at::Tensor g = wide(grad_normed), past = wide(grad_sum_in), s = wide(sum), w = as(weight, s);
  const int64_t rows = s.size(0), width = s.size(1), blocks = (rows + kBlockRows - 1) / kBlockRows;
  const at::Tensor out = at::empty_like(s);
  by_type(s, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> sums(blocks * width);
    const T *gp = data_of<T>(g), *pp = data_of<T>(past), *sp = data_of<T>(s), *rp = data_of<T>(rstd), *wp = data_of<T>(w);
    T* to = data_of<T>(out);
    for_rows(blocks, kBlockRows * width, [&](int64_t b) {
      for (int64_t i = b * kBlockRows; i < std::min(rows, (b + 1) * kBlockRows); ++i) {
        rms_norm_row_backward(gp + i * width, pp ? pp + i * width : nullptr, sp + i * width, rp[i], wp, to + i * width,
                              sums.data() + b * width, width);
      }
    });
    add_blocks(grad_weight, sums, width);
    return 0;
  });
  return as(out, sum);
}

at::Tensor swiglu_cpu(const at::Tensor& x) {
  const at::Tensor in = wide(x);
  const int64_t rows = in.size(0), width = in.size(1) / 2;
  const at::Tensor out = at::empty({rows, width}, in.options());
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    const T* from = data_of<T>(in);
    T* to = data_of<T>(out);
    for_rows(rows, width,
             [&](int64_t i) { swiglu_row(from + 2 * i * width, from + (2 * i + 1) * width, to + i * width, width); });
    return 0;
  });
  return as(out, x);
}

at::Tensor swiglu_backward_cpu(const at::Tensor& grad, const at::Tensor& x) {
  const at::Tensor g = wide(grad), in = wide(x), out = at::empty_like(in);
  const int64_t rows = in.size(0), width = in.size(1) / 2;
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    const T *gp = data_of<T>(g), *from = data_of<T>(in);
    T* to = data_of<T>(out);
    for_rows(rows, width, [&](int64_t i) {
      const int64_t gate = 2 * i * width, up = gate + width;
      swiglu_row_backward(gp + i * width, from + gate, from + up, to + gate, to + up, width);
    });
    return 0;
  });
  return as(out, x);
}

at::Tensor rotary_cpu(const at::Tensor& x, const at::Tensor& table, const Rotary& how) {
  const at::Tensor in = wide(x), out = at::empty_like(in);
  const int64_t columns = in.size(1), length = table.size(0), width = table.size(1);
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    const T *from = data_of<T>(in), *angles = data_of<T>(table);
    T* to = data_of<T>(out);
    const T sign = how.back ? T(-1) : T(1);
    for_rows(in.size(0), columns, [&](int64_t n) {
      const T *row = from + n * columns, *turns = angles + n % length * width;
      T* y = to + n * columns;
      for (int64_t h = 0; h < how.heads; ++h) {
        (how.interleaved ? turn_neighbours(row + h * width, y + h * width, turns, width / 2, sign)
                         : turn_halves(row + h * width, y + h * width, turns, width / 2, sign));
      }
      std::copy(row + how.heads * width, row + columns, y + how.heads * width);
    });
    return 0;
  });
  return as(out, x);
}

}  // namespace

const LlamaTable& cpu_llama_table() {
  static const LlamaTable table = {residual_rms_norm_cpu, residual_rms_norm_backward_cpu, swiglu_cpu, swiglu_backward_cpu,
                                   rotary_cpu};
  return table;
}

}  // namespace muster::worker::kernels
