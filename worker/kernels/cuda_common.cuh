#pragma once
// What the CUDA kernels share.

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "comm/base/error.h"

namespace muster::worker::kernels {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The type that sums run in.
template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <typename T>
using WideT = typename Wide<T>::type;

template <typename T>
__device__ __forceinline__ WideT<T> widen(T x) {
  return static_cast<WideT<T>>(x);
}
template <typename T>
__device__ __forceinline__ T narrow(WideT<T> x) {
  return static_cast<T>(x);
}

// Four neighbours, moved by one load or store.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

template <typename W>
__device__ __forceinline__ W warp_sum(W x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
template <typename W>
__device__ __forceinline__ W warp_max(W x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// Sum over the block (any multiple of 32 threads), valid in every thread. scratch: 33 values in shared memory.
template <typename W>
__device__ W block_sum(W x, W* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const W part = threadIdx.x < blockDim.x / kWarp ? scratch[threadIdx.x] : W(0);
    const W total = warp_sum(part);
    if (threadIdx.x == 0) scratch[kWarp] = total;
  }
  __syncthreads();
  const W total = scratch[kWarp];
  __syncthreads();
  return total;
}

inline int blocks_for(int64_t items, int per_block, int most = 132 * 16) {
  return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(most, (items + per_block - 1) / per_block)));
}

inline cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream(); }

// Device pointers in CUDA's own 16-bit types.
template <typename T>
T* pointer(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.data_ptr()) : nullptr;
}

// f(T{}) for the tensor's dtype.
template <typename F>
void by_cuda_type(const at::Tensor& t, F&& f) {
  switch (t.scalar_type()) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(__nv_bfloat16{});
    case at::kHalf: return f(__half{});
    default: throw CheckError(fmt::format("kernels: no CUDA code for dtype {}", toString(t.scalar_type())));
  }
}

inline at::TensorOptions wide_options(const at::Tensor& t) {
  return t.options().dtype(t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace muster::worker::kernels
