// Dropout, GELU and AdamW: one pass each, four neighbours a thread.

#include <ATen/ops/empty_like.h>

#include "worker/kernels/cuda_common.cuh"
#include "worker/kernels/cuda_kernels.h"
#include "worker/kernels/philox.h"

namespace muster::worker::kernels {
namespace {

constexpr int kThreads = 256;

// One thread draws for elements 4 i .. 4 i + 3 of a row, so the draw does not depend on the row's width or the grid.
template <typename T>
__global__ void dropout_kernel(const T* x, T* y, int64_t rows, int64_t width, uint64_t key, int64_t first_sample, uint64_t threshold, WideT<T> scale) {
  const int64_t groups = (width + 3) / 4, total = rows * groups;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < total; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / groups, group = i % groups, at = row * width + group * 4;
    const PhiloxBlock r = philox(key, static_cast<uint64_t>(first_sample + row), static_cast<uint64_t>(group));
    if (width % 4 == 0) {
      Four<T> four = *reinterpret_cast<const Four<T>*>(x + at);
      for (int j = 0; j < 4; ++j) four.v[j] = r.v[j] >= threshold ? narrow<T>(widen(four.v[j]) * scale) : narrow<T>(0);
      *reinterpret_cast<Four<T>*>(y + at) = four;
    } else {
      for (int j = 0; j < 4 && group * 4 + j < width; ++j) y[at + j] = r.v[j] >= threshold ? narrow<T>(widen(x[at + j]) * scale) : narrow<T>(0);
    }
  }
}

__device__ __forceinline__ float normal_cdf(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118f)); }
__device__ __forceinline__ double normal_cdf(double x) { return 0.5 * (1.0 + erf(x * 0.70710678118654752440)); }
__device__ __forceinline__ float normal_density(float x) { return 0.39894228040f * __expf(-0.5f * x * x); }
__device__ __forceinline__ double normal_density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }

struct Gelu {
  template <typename W>
  __device__ W operator()(W, W x) const {
    return x * normal_cdf(x);
  }
};
struct GeluBackward {
  template <typename W>
  __device__ W operator()(W g, W x) const {
    return g * (normal_cdf(x) + x * normal_density(x));
  }
};

// y = f(g, x); g may be x.
template <typename T, typename F>
__global__ void elementwise_kernel(const T* g, const T* x, T* y, int64_t n, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (int64_t i = first; i < n / 4; i += step) {
    const Four<T> a = reinterpret_cast<const Four<T>*>(g)[i], b = reinterpret_cast<const Four<T>*>(x)[i];
    Four<T> out;
    for (int j = 0; j < 4; ++j) out.v[j] = narrow<T>(f(widen(a.v[j]), widen(b.v[j])));
    reinterpret_cast<Four<T>*>(y)[i] = out;
  }
  for (int64_t i = n / 4 * 4 + first; i < n; i += step) y[i] = narrow<T>(f(widen(g[i]), widen(x[i])));
}

template <typename F>
at::Tensor elementwise(const at::Tensor& g, const at::Tensor& x, F f) {
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    elementwise_kernel<<<blocks_for(x.numel(), 4 * kThreads), kThreads, 0, stream()>>>(pointer<T>(g), pointer<T>(x), pointer<T>(y), x.numel(), f);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return y;
}

template <typename W>
struct AdamW {
  W beta1, beta2, step_size, inverse_correction2, eps, decay;
  __device__ void operator()(W& w, W g, W& m, W& v, bool decays) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    w = w * (decays ? decay : W(1)) - step_size * m / (sqrt(v) * inverse_correction2 + eps);
  }
};

// W: master and moments; G: gradients; M: model copy (model may be null).
template <typename W, typename G, typename M>
__global__ void adamw_kernel(W* master, const G* grad, W* m, W* v, M* model, int64_t n, int64_t decay_elements, const W* grad_scale, AdamW<W> f) {
  const W scale = *grad_scale;
  if (!isfinite(scale)) return;
  const int64_t step = int64_t{gridDim.x} * blockDim.x, first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (int64_t i = first; i < n / 4; i += step) {
    Four<W> w4 = reinterpret_cast<Four<W>*>(master)[i], m4 = reinterpret_cast<Four<W>*>(m)[i], v4 = reinterpret_cast<Four<W>*>(v)[i];
    const Four<G> g4 = reinterpret_cast<const Four<G>*>(grad)[i];
    for (int j = 0; j < 4; ++j) f(w4.v[j], static_cast<W>(g4.v[j]) * scale, m4.v[j], v4.v[j], i * 4 + j < decay_elements);
    reinterpret_cast<Four<W>*>(master)[i] = w4;
    reinterpret_cast<Four<W>*>(m)[i] = m4;
    reinterpret_cast<Four<W>*>(v)[i] = v4;
    if (model) {
      Four<M> out;
      for (int j = 0; j < 4; ++j) out.v[j] = static_cast<M>(w4.v[j]);
      reinterpret_cast<Four<M>*>(model)[i] = out;
    }
  }
  for (int64_t i = n / 4 * 4 + first; i < n; i += step) {
    f(master[i], static_cast<W>(grad[i]) * scale, m[i], v[i], i < decay_elements);
    if (model) model[i] = static_cast<M>(master[i]);
  }
}

template <typename W>
AdamW<W> factors_of(const AdamWStep& s) {
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step)), correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  return {static_cast<W>(s.beta1), static_cast<W>(s.beta2), static_cast<W>(s.lr / correction1), static_cast<W>(1.0 / std::sqrt(correction2)),
          static_cast<W>(s.eps), static_cast<W>(1.0 - s.lr * s.weight_decay)};
}

}  // namespace

at::Tensor dropout_cuda(const at::Tensor& x, const DropoutKey& key) {
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.dim() > 0 ? x.size(0) : 1, width = x.numel() / rows;
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    dropout_kernel<<<blocks_for(rows * ((width + 3) / 4), kThreads), kThreads, 0, stream()>>>(
        pointer<T>(x), pointer<T>(y), rows, width, key.key, key.first_sample, dropout_threshold(key.p), static_cast<WideT<T>>(1.0 / (1.0 - key.p)));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return y;
}

at::Tensor gelu_cuda(const at::Tensor& x) { return elementwise(x, x, Gelu{}); }
at::Tensor gelu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x) { return elementwise(grad_out, x, GeluBackward{}); }

void adamw_cuda(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor v, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                const AdamWStep& step) {
  const int64_t n = master.numel();
  if (n == 0) return;
  const auto launch = [&](auto w, auto g, auto c) {
    using W = decltype(w);
    using G = decltype(g);
    using M = decltype(c);
    adamw_kernel<<<blocks_for(n, 4 * kThreads), kThreads, 0, stream()>>>(pointer<W>(master), pointer<G>(grad), pointer<W>(m), pointer<W>(v),
                                                                         pointer<M>(model), n, decay_elements, pointer<W>(grad_scale), factors_of<W>(step));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  const auto with_model = [&](auto w, auto g) {
    if (!model.defined()) return launch(w, g, w);
    by_cuda_type(model, [&](auto c) { launch(w, g, c); });
  };
  by_cuda_type(grad, [&](auto g) { master.scalar_type() == at::kDouble ? with_model(double{}, g) : with_model(float{}, g); });
}

}  // namespace muster::worker::kernels
