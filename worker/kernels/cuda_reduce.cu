// Sums over a whole buffer, and cross-entropy. Every sum has a fixed order: no atomics.

#include <ATen/ops/empty.h>

#include "worker/kernels/cuda_common.cuh"
#include "worker/kernels/cuda_kernels.h"

namespace muster::worker::kernels {
namespace {

constexpr int kThreads = 256, kPartials = 1024;

template <typename T>
__global__ void square_partials(const T* x, int64_t n, double* partials) {
  __shared__ double scratch[kWarp + 1];
  double sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x, first = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (int64_t i = first; i < n / 4; i += step) {
    const Four<T> four = reinterpret_cast<const Four<T>*>(x)[i];
    WideT<T> part = 0;
    for (int j = 0; j < 4; ++j) part += widen(four.v[j]) * widen(four.v[j]);
    sum += part;
  }
  for (int64_t i = n / 4 * 4 + first; i < n; i += step) sum += static_cast<double>(widen(x[i])) * widen(x[i]);
  const double total = block_sum(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// One block: out = sum of x.
template <typename T, typename Out>
__global__ void sum_all(const T* x, int64_t n, Out* out) {
  __shared__ double scratch[kWarp + 1];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  const double total = block_sum(sum, scratch);
  if (threadIdx.x == 0) *out = static_cast<Out>(total);
}

// The running maximum and the sum of exp(x - maximum) of part of a row (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018).
template <typename W>
struct Softmax {
  W top, sum;
  __device__ void add(W x) {
    if (x <= top) {
      sum += exp(x - top);
    } else {
      sum = sum * exp(top - x) + 1;
      top = x;
    }
  }
  __device__ void merge(W other_top, W other_sum) {
    const W high = max(top, other_top);
    sum = sum * exp(top - high) + other_sum * exp(other_top - high);
    top = high;
  }
};

template <typename W>
__device__ Softmax<W> merge_lanes(Softmax<W> s) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    s.merge(__shfl_xor_sync(kAllLanes, s.top, offset), __shfl_xor_sync(kAllLanes, s.sum, offset));
  }
  return s;
}

// kRowThreads threads a row (a warp, or a block of one row); writes each row's loss and, where wanted, its gradient.
template <typename T, int kRowThreads>
__global__ void cross_entropy_rows(T* logits, const int64_t* targets, WideT<T>* losses, int64_t rows, int width, double gradient_scale) {
  using W = WideT<T>;
  constexpr int kRowsPerBlock = kThreads / kRowThreads;
  __shared__ W tops[kThreads / kWarp], sums[kThreads / kWarp];
  const int lane = threadIdx.x % kRowThreads;
  const int64_t row = blockIdx.x * int64_t{kRowsPerBlock} + threadIdx.x / kRowThreads;
  if (row >= rows) return;  // whole warps, and with a block a row never
  T* x = logits + row * width;
  const int64_t target = targets[row];
  Softmax<W> s{W(-1e30), W(0)};
  for (int i = lane; i < width; i += kRowThreads) s.add(widen(x[i]));
  s = merge_lanes(s);
  if constexpr (kRowThreads > kWarp) {
    if (threadIdx.x % kWarp == 0) tops[threadIdx.x / kWarp] = s.top, sums[threadIdx.x / kWarp] = s.sum;
    __syncthreads();
    s = {tops[0], sums[0]};
    for (int i = 1; i < kRowThreads / kWarp; ++i) s.merge(tops[i], sums[i]);
  }
  const bool counts = target >= 0 && target < width;
  if (lane == 0) losses[row] = counts ? log(s.sum) - (widen(x[target]) - s.top) : W(0);
  if (gradient_scale == 0) return;
  if constexpr (kRowThreads > kWarp) __syncthreads(); else __syncwarp();  // the target's logit has been read
  const W scale = W(gradient_scale), inverse = scale / s.sum;
  for (int i = lane; i < width; i += kRowThreads) {
    const W p = exp(widen(x[i]) - s.top) * inverse;
    x[i] = narrow<T>(counts ? p - (i == target ? scale : W(0)) : W(0));
  }
}

}  // namespace

at::Tensor sum_of_squares_cuda(const at::Tensor& x) {
  const auto options = x.options().dtype(at::kDouble);
  at::Tensor partials = at::empty({kPartials}, options), out = at::empty({1}, options);
  const int blocks = blocks_for(x.numel(), 4 * kThreads, kPartials);
  by_cuda_type(x, [&](auto zero) {
    using T = decltype(zero);
    square_partials<<<blocks, kThreads, 0, stream()>>>(pointer<T>(x), x.numel(), pointer<double>(partials));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  sum_all<<<1, kThreads, 0, stream()>>>(pointer<double>(partials), blocks, pointer<double>(out));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

at::Tensor cross_entropy_cuda(at::Tensor logits, const at::Tensor& targets, double gradient_scale) {
  const int64_t rows = logits.size(0);
  const int width = static_cast<int>(logits.size(1));
  at::Tensor losses = at::empty({rows}, wide_options(logits)), out = at::empty({1}, wide_options(logits));
  by_cuda_type(logits, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel, int64_t rows_per_block) {
      if (rows == 0) return;
      kernel<<<static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block), kThreads, 0, stream()>>>(
          pointer<T>(logits), pointer<int64_t>(targets), pointer<WideT<T>>(losses), rows, width, gradient_scale);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    };
    if (width <= 1024) {
      launch(cross_entropy_rows<T, kWarp>, kThreads / kWarp);
    } else {
      launch(cross_entropy_rows<T, kThreads>, 1);
    }
    sum_all<<<1, 1024, 0, stream()>>>(pointer<WideT<T>>(losses), rows, pointer<WideT<T>>(out));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return out;
}

}  // namespace muster::worker::kernels
