#pragma once
// Sums over rows that many blocks share: each block leaves its part, then the parts are added in block order.

#include "worker/kernels/cuda_common.cuh"

namespace muster::worker::kernels {

// gradient[c] += sum over blocks of partials[b][c]; 32 columns a block, 8 rows of threads share the blocks.
template <typename W, typename G>
__global__ void add_partials(const W* partials, int blocks, int width, G* gradient) {
  __shared__ W shared[8][kWarp];
  const int c = blockIdx.x * kWarp + threadIdx.x;
  W total = 0;
  if (c < width) {
    for (int b = threadIdx.y; b < blocks; b += 8) total += partials[int64_t{b} * width + c];
  }
  shared[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
  for (int i = 1; i < 8; ++i) total += shared[i][threadIdx.x];
  gradient[c] = static_cast<G>(static_cast<W>(gradient[c]) + total);
}

template <typename W>
void add_to_gradient(const at::Tensor& gradient, const W* partials, int blocks, int width) {
  if (!gradient.defined()) return;
  by_cuda_type(gradient, [&](auto zero) {
    using G = decltype(zero);
    add_partials<<<(width + kWarp - 1) / kWarp, dim3(kWarp, 8), 0, stream()>>>(partials, blocks, width, pointer<G>(gradient));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
}

}  // namespace muster::worker::kernels
