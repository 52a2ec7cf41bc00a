// The CUDA half of llama.h.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "worker/kernels/cuda_llama.h"
#include "worker/kernels/cuda_partials.cuh"

namespace muster::worker::kernels {
namespace {

// ---- RMS norm: a block a row, which stays in registers, four neighbours a thread and slot -----------------------------

constexpr int kMostThreads = 512;
constexpr int most_threads(int slots) { return slots < 8 ? 256 : kMostThreads; }
constexpr int kBackwardBlocks = 132 * 4;  // four a multiprocessor of an H200; fixed, so that the sums' order is

// Columns that this thread holds in its slot j: this one and the three after it.
__device__ __forceinline__ int column(int j) { return 4 * (blockDim.x * j + threadIdx.x); }

template <typename T>
__device__ __forceinline__ Four<T> load4(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}
template <typename T>
__device__ __forceinline__ void store4(T* to, const Four<T>& x) {
  *reinterpret_cast<Four<T>*>(to) = x;
}

template <typename T, int N>
__global__ void __launch_bounds__(most_threads(N)) rms_norm_kernel(const T* residual, const T* branch, const T* weight, T* sum,
                                                                   T* normed, WideT<T>* rstds, int width, WideT<T> eps) {
  using W = WideT<T>;
  __shared__ W scratch[kWarp + 1];
  const int64_t base = blockIdx.x * int64_t{width};
  W x[N][4];
  W squares = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = column(j);
    if (c >= width) continue;
    Four<T> a = load4(residual + base + c);
    if (branch) {
      const Four<T> b = load4(branch + base + c);
      for (int i = 0; i < 4; ++i) a.v[i] = narrow<T>(widen(a.v[i]) + widen(b.v[i]));
      store4(sum + base + c, a);
    }
    for (int i = 0; i < 4; ++i) x[j][i] = widen(a.v[i]), squares += x[j][i] * x[j][i];
  }
  const W rstd = W(1) / sqrt(block_sum(squares, scratch) / width + eps);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = column(j);
    if (c >= width) continue;
    const Four<T> w = load4(weight + c);
    Four<T> out;
    for (int i = 0; i < 4; ++i) out.v[i] = narrow<T>(x[j][i] * rstd * widen(w.v[i]));
    store4(normed + base + c, out);
  }
  if (threadIdx.x == 0) rstds[blockIdx.x] = rstd;
}

// Also leaves this block's sums of g * z a column in partials (blocks, width).
template <typename T, int N>
__global__ void __launch_bounds__(most_threads(N))
    rms_norm_backward_kernel(const T* grad, const T* past, const T* sum, const WideT<T>* rstds, const T* weight, T* out,
                             WideT<T>* partials, int64_t rows, int width) {
  using W = WideT<T>;
  __shared__ W scratch[kWarp + 1];
  W d_weight[N][4] = {};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t base = row * width;
    const W rstd = rstds[row];
    W h[N][4], z[N][4];
    W sum_hz = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int c = column(j);
      if (c >= width) continue;
      const Four<T> g = load4(grad + base + c), x = load4(sum + base + c), w = load4(weight + c);
      for (int i = 0; i < 4; ++i) {
        z[j][i] = widen(x.v[i]) * rstd;
        h[j][i] = widen(g.v[i]) * widen(w.v[i]);
        d_weight[j][i] += widen(g.v[i]) * z[j][i];
        sum_hz += h[j][i] * z[j][i];
      }
    }
    const W mean_hz = block_sum(sum_hz, scratch) / width;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int c = column(j);
      if (c >= width) continue;
      Four<T> before{}, result;
      if (past) before = load4(past + base + c);
      for (int i = 0; i < 4; ++i)
        result.v[i] = narrow<T>((past ? widen(before.v[i]) : W(0)) + rstd * (h[j][i] - z[j][i] * mean_hz));
      store4(out + base + c, result);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = column(j);
    if (c >= width) continue;
    for (int i = 0; i < 4; ++i) partials[blockIdx.x * int64_t{width} + c + i] = d_weight[j][i];
  }
}

// f(slots, threads a block), with the fewest slots.
template <typename F>
void by_slots(int64_t width, F&& f) {
  if (width % 4 != 0 || width == 0 || width > 4 * 8 * kMostThreads) {
    throw CheckError(
        fmt::format("kernels: RMS norm over {} columns; wanted a multiple of 4, at most {}", width, 4 * 8 * kMostThreads));
  }
  const auto threads = [&](int slots) { return static_cast<int>((width / 4 + kWarp * slots - 1) / (kWarp * slots) * kWarp); };
  if (threads(1) <= most_threads(1)) return f(std::integral_constant<int, 1>{}, threads(1));
  if (threads(2) <= most_threads(2)) return f(std::integral_constant<int, 2>{}, threads(2));
  if (threads(4) <= most_threads(4)) return f(std::integral_constant<int, 4>{}, threads(4));
  return f(std::integral_constant<int, 8>{}, threads(8));
}

// ---- SwiGLU and rotary embedding: one pass each -----------------------------------------------------------------------

constexpr int kThreads = 256;

template <typename T, int V>
struct alignas(V * sizeof(T)) Pack {
  T v[V];
};
template <int V, typename T>
__device__ __forceinline__ Pack<T, V> load(const T* from) {
  return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <int V, typename T>
__device__ __forceinline__ void store(T* to, const Pack<T, V>& x) {
  *reinterpret_cast<Pack<T, V>*>(to) = x;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

template <typename T, int V>
__global__ void swiglu_kernel(const T* x, T* y, int64_t packs, int64_t width) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, per_row = width / V;
  for (int64_t p = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; p < packs; p += step) {
    const int64_t at = p / per_row * 2 * width + p % per_row * V;
    const Pack<T, V> gate = load<V>(x + at), up = load<V>(x + at + width);
    Pack<T, V> out;
    for (int i = 0; i < V; ++i) {
      const WideT<T> g = widen(gate.v[i]);
      out.v[i] = narrow<T>(g * sigmoid(g) * widen(up.v[i]));
    }
    store<V>(y + p * V, out);
  }
}

template <typename T, int V>
__global__ void swiglu_backward_kernel(const T* grad, const T* x, T* dx, int64_t packs, int64_t width) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, per_row = width / V;
  for (int64_t p = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; p < packs; p += step) {
    const int64_t at = p / per_row * 2 * width + p % per_row * V;
    const Pack<T, V> gate = load<V>(x + at), up = load<V>(x + at + width), g = load<V>(grad + p * V);
    Pack<T, V> d_gate, d_up;
    for (int i = 0; i < V; ++i) {
      const WideT<T> a = widen(gate.v[i]), s = sigmoid(a), silu = a * s, gi = widen(g.v[i]);
      d_up.v[i] = narrow<T>(gi * silu);
      d_gate.v[i] = narrow<T>(gi * widen(up.v[i]) * (s + silu * (1 - s)));
    }
    store<V>(dx + at, d_gate);
    store<V>(dx + at + width, d_up);
  }
}

// An item is V pairs of a head (kInterleaved: 2 V neighbours; else V values and their partners half a head on), or 2 V values
// that stay.
template <typename T, int V, bool kInterleaved>
__global__ void rotary_kernel(const T* x, T* y, const WideT<T>* table, int64_t rows, int64_t columns, int64_t length,
                              int64_t width, int64_t turned, WideT<T> sign) {
  using W = WideT<T>;
  const int64_t per_row = columns / (2 * V), pairs = width / 2, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t item = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; item < rows * per_row; item += step) {
    const int64_t row = item / per_row, c = item % per_row * 2 * V;
    const bool turns = c < turned;
    const int64_t pair = c % width / 2;
    const int64_t first = row * columns + (kInterleaved || !turns ? c : c / width * width + pair),
                  second = first + (kInterleaved || !turns ? V : pairs);
    const Pack<T, V> a = load<V>(x + first), b = load<V>(x + second);
    if (!turns) {
      store<V>(y + first, a);
      store<V>(y + second, b);
      continue;
    }
    const W* angles = table + row % length * width + pair;
    const Pack<W, V> cosines = load<V>(angles), sines = load<V>(angles + pairs);
    T in[2 * V], out[2 * V];
    for (int i = 0; i < V; ++i) in[i] = a.v[i], in[V + i] = b.v[i];
    for (int i = 0; i < V; ++i) {
      const int one = kInterleaved ? 2 * i : i, other = kInterleaved ? 2 * i + 1 : V + i;
      const W p = widen(in[one]), q = widen(in[other]), co = cosines.v[i], si = sign * sines.v[i];
      out[one] = narrow<T>(p * co - q * si);
      out[other] = narrow<T>(p * si + q * co);
    }
    Pack<T, V> ya, yb;
    for (int i = 0; i < V; ++i) ya.v[i] = out[i], yb.v[i] = out[V + i];
    store<V>(y + first, ya);
    store<V>(y + second, yb);
  }
}

// f(integral constant 4), or 1 where rows do not come in fours.
template <typename F>
void by_pack(bool fours, F&& f) {
  if (fours) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, 1>{});
}

}  // namespace

RmsNormOut residual_rms_norm_cuda(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t rows = residual.size(0), width = residual.size(1);
  RmsNormOut out{x.defined() ? at::empty_like(residual) : residual, at::empty_like(residual),
                 at::empty({rows}, wide_options(residual))};
  if (rows == 0) return out;
  by_cuda_type(residual, [&](auto zero) {
    using T = decltype(zero);
    by_slots(width, [&](auto slots, int threads) {
      rms_norm_kernel<T, decltype(slots)::value><<<static_cast<unsigned>(rows), threads, 0, stream()>>>(
          pointer<T>(residual), pointer<T>(x), pointer<T>(weight), pointer<T>(out.sum), pointer<T>(out.normed),
          pointer<WideT<T>>(out.rstd), static_cast<int>(width), static_cast<WideT<T>>(eps));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return out;
}

at::Tensor residual_rms_norm_backward_cuda(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum,
                                           const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight) {
  const int64_t rows = sum.size(0), width = sum.size(1);
  at::Tensor out = at::empty_like(sum);
  if (rows == 0) return out;
  const int blocks = blocks_for(rows, 1, kBackwardBlocks);
  at::Tensor partials = at::empty({blocks, width}, wide_options(sum));
  by_cuda_type(sum, [&](auto zero) {
    using T = decltype(zero);
    using W = WideT<T>;
    by_slots(width, [&](auto slots, int threads) {
      rms_norm_backward_kernel<T, decltype(slots)::value><<<blocks, threads, 0, stream()>>>(
          pointer<T>(grad_normed), pointer<T>(grad_sum_in), pointer<T>(sum), pointer<W>(rstd), pointer<T>(weight),
          pointer<T>(out), pointer<W>(partials), rows, static_cast<int>(width));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
    add_to_gradient(grad_weight, pointer<W>(partials), blocks, static_cast<int>(width));
  });
  return out;
}

at::Tensor swiglu_cuda(const at::Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1) / 2;
  at::Tensor y = at::empty({rows, width}, x.options());
  if (y.numel() == 0) return y;
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    by_pack(width % 4 == 0, [&](auto pack) {
      constexpr int V = decltype(pack)::value;
      swiglu_kernel<T, V>
          <<<blocks_for(y.numel() / V, kThreads), kThreads, 0, stream()>>>(pointer<T>(x), pointer<T>(y), y.numel() / V, width);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return y;
}

at::Tensor swiglu_backward_cuda(const at::Tensor& grad, const at::Tensor& x) {
  const int64_t width = grad.size(1);
  at::Tensor dx = at::empty_like(x);
  if (grad.numel() == 0) return dx;
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    by_pack(width % 4 == 0, [&](auto pack) {
      constexpr int V = decltype(pack)::value;
      swiglu_backward_kernel<T, V><<<blocks_for(grad.numel() / V, kThreads), kThreads, 0, stream()>>>(
          pointer<T>(grad), pointer<T>(x), pointer<T>(dx), grad.numel() / V, width);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return dx;
}

at::Tensor rotary_cuda(const at::Tensor& x, const at::Tensor& table, const Rotary& how) {
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  const int64_t rows = x.size(0), columns = x.size(1), length = table.size(0), width = table.size(1);
  MUSTER_CHECK_EQ(columns % 2, 0);
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    by_pack(width % 8 == 0 && columns % 8 == 0, [&](auto pack) {
      constexpr int V = decltype(pack)::value;
      const auto kernel = how.interleaved ? rotary_kernel<T, V, true> : rotary_kernel<T, V, false>;
      kernel<<<blocks_for(x.numel() / (2 * V), kThreads), kThreads, 0, stream()>>>(
          pointer<T>(x), pointer<T>(y), pointer<WideT<T>>(table), rows, columns, length, width, how.heads * width,
          static_cast<WideT<T>>(how.back ? -1 : 1));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return y;
}

}  // namespace muster::worker::kernels
