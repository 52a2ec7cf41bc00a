// Residual add + layer norm. A warp a row; a row of up to 2048 values stays in registers, four neighbours a lane.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "worker/kernels/cuda_kernels.h"
#include "worker/kernels/cuda_partials.cuh"

namespace muster::worker::kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kBackwardBlocks = 264;  // two a multiprocessor of an H200; fixed, so that the sums' order is
constexpr double kEps = 1e-5;

// Columns that lane `lane` holds in its slot j: 4 (32 j + lane) and the three after it.
__device__ __forceinline__ int column(int j, int lane) { return 4 * (kWarp * j + lane); }

template <typename T, int N>
__global__ void forward_kernel(const T* residual, const T* branch, const T* weight, const T* bias, T* sum, T* normed, WideT<T>* means,
                               WideT<T>* rstds, int64_t rows, int width) {
  using W = WideT<T>;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp;
  if (row >= rows) return;
  const int64_t base = row * width;
  W x[N][4];
  W total = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = column(j, lane);
    if (c >= width) continue;
    Four<T> a = *reinterpret_cast<const Four<T>*>(residual + base + c);
    if (branch) {
      const Four<T> b = *reinterpret_cast<const Four<T>*>(branch + base + c);
      for (int i = 0; i < 4; ++i) a.v[i] = narrow<T>(widen(a.v[i]) + widen(b.v[i]));
      *reinterpret_cast<Four<T>*>(sum + base + c) = a;
    }
    for (int i = 0; i < 4; ++i) total += x[j][i] = widen(a.v[i]);
  }
  const W mean = warp_sum(total) / width;
  W squares = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (column(j, lane) >= width) continue;
    for (int i = 0; i < 4; ++i) squares += (x[j][i] - mean) * (x[j][i] - mean);
  }
  const W rstd = W(1) / sqrt(warp_sum(squares) / width + W(kEps));
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int c = column(j, lane);
    if (c >= width) continue;
    const Four<T> w = *reinterpret_cast<const Four<T>*>(weight + c);
    Four<T> out;
    for (int i = 0; i < 4; ++i) out.v[i] = narrow<T>((x[j][i] - mean) * rstd * widen(w.v[i]) + (bias ? widen(bias[c + i]) : W(0)));
    *reinterpret_cast<Four<T>*>(normed + base + c) = out;
  }
  if (lane == 0) means[row] = mean, rstds[row] = rstd;
}

// Also leaves this block's sums of g * z and g a column in partials (2, blocks, width).
template <typename T, int N>
__global__ void backward_kernel(const T* grad, const T* past, const T* sum, const WideT<T>* means, const WideT<T>* rstds, const T* weight, T* out,
                                WideT<T>* partials, int64_t rows, int width) {
  using W = WideT<T>;
  extern __shared__ unsigned char shared_bytes[];
  W* shared = reinterpret_cast<W*>(shared_bytes);  // (kWarps, width)
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  W d_weight[N][4] = {}, d_bias[N][4] = {};
  for (int64_t row = blockIdx.x * int64_t{kWarps} + warp; row < rows; row += int64_t{gridDim.x} * kWarps) {
    const int64_t base = row * width;
    const W mean = means[row], rstd = rstds[row];
    W h[N][4], z[N][4];
    W sum_h = 0, sum_hz = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int c = column(j, lane);
      if (c >= width) continue;
      const Four<T> g = *reinterpret_cast<const Four<T>*>(grad + base + c), x = *reinterpret_cast<const Four<T>*>(sum + base + c);
      const Four<T> w = *reinterpret_cast<const Four<T>*>(weight + c);
      for (int i = 0; i < 4; ++i) {
        const W gi = widen(g.v[i]);
        z[j][i] = (widen(x.v[i]) - mean) * rstd;
        h[j][i] = gi * widen(w.v[i]);
        d_weight[j][i] += gi * z[j][i];
        d_bias[j][i] += gi;
        sum_h += h[j][i];
        sum_hz += h[j][i] * z[j][i];
      }
    }
    const W mean_h = warp_sum(sum_h) / width, mean_hz = warp_sum(sum_hz) / width;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int c = column(j, lane);
      if (c >= width) continue;
      Four<T> before{}, result;
      if (past) before = *reinterpret_cast<const Four<T>*>(past + base + c);
      for (int i = 0; i < 4; ++i) result.v[i] = narrow<T>((past ? widen(before.v[i]) : W(0)) + rstd * (h[j][i] - mean_h - z[j][i] * mean_hz));
      *reinterpret_cast<Four<T>*>(out + base + c) = result;
    }
  }
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int c = column(j, lane);
      if (c >= width) continue;
      for (int i = 0; i < 4; ++i) shared[warp * width + c + i] = which ? d_bias[j][i] : d_weight[j][i];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width; c += kThreads) {
      W total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared[w * width + c];
      partials[(which * int64_t{gridDim.x} + blockIdx.x) * width + c] = total;
    }
    __syncthreads();
  }
}

// f with the smallest number of slots that holds the row.
template <typename F>
void by_slots(int width, F&& f) {
  MUSTER_CHECK_EQ(width % 4, 0);
  const int slots = (width + 127) / 128;
  if (slots <= 1) return f(std::integral_constant<int, 1>{});
  if (slots <= 2) return f(std::integral_constant<int, 2>{});
  if (slots <= 3) return f(std::integral_constant<int, 3>{});
  if (slots <= 4) return f(std::integral_constant<int, 4>{});
  if (slots <= 6) return f(std::integral_constant<int, 6>{});
  if (slots <= 8) return f(std::integral_constant<int, 8>{});
  if (slots <= 13) return f(std::integral_constant<int, 13>{});
  if (slots <= 16) return f(std::integral_constant<int, 16>{});
  throw CheckError(fmt::format("kernels: layer norm over {} columns; wanted at most 2048", width));
}

}  // namespace

LayerNormOut residual_layer_norm_cuda(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t rows = residual.size(0);
  const int width = static_cast<int>(residual.size(1));
  LayerNormOut out{x.defined() ? at::empty_like(residual) : residual, at::empty_like(residual), at::empty({rows}, wide_options(residual)),
                   at::empty({rows}, wide_options(residual))};
  if (rows == 0) return out;
  by_cuda_type(residual, [&](auto zero) {
    using T = decltype(zero);
    by_slots(width, [&](auto slots) {
      forward_kernel<T, decltype(slots)::value><<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, 0, stream()>>>(
          pointer<T>(residual), pointer<T>(x), pointer<T>(weight), pointer<T>(bias), pointer<T>(out.sum), pointer<T>(out.normed),
          pointer<WideT<T>>(out.mean), pointer<WideT<T>>(out.rstd), rows, width);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  });
  return out;
}

at::Tensor residual_layer_norm_backward_cuda(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum, const at::Tensor& mean,
                                             const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight, at::Tensor grad_bias) {
  const int64_t rows = sum.size(0);
  const int width = static_cast<int>(sum.size(1));
  at::Tensor out = at::empty_like(sum);
  if (rows == 0) return out;
  const int blocks = blocks_for(rows, kWarps, kBackwardBlocks);
  at::Tensor partials = at::empty({2, blocks, width}, wide_options(sum));
  by_cuda_type(sum, [&](auto zero) {
    using T = decltype(zero);
    using W = WideT<T>;
    by_slots(width, [&](auto slots) {
      const auto kernel = backward_kernel<T, decltype(slots)::value>;
      const size_t shared_bytes = size_t{kWarps} * width * sizeof(W);
      C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
      kernel<<<blocks, kThreads, shared_bytes, stream()>>>(pointer<T>(grad_normed), pointer<T>(grad_sum_in), pointer<T>(sum), pointer<W>(mean),
                                                           pointer<W>(rstd), pointer<T>(weight), pointer<T>(out), pointer<W>(partials), rows, width);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
    add_to_gradient(grad_weight, pointer<W>(partials), blocks, width);
    add_to_gradient(grad_bias, pointer<W>(partials) + int64_t{blocks} * width, blocks, width);
  });
  return out;
}

}  // namespace muster::worker::kernels
