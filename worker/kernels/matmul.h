#pragma once

#include <ATen/core/Tensor.h>

namespace muster::worker::kernels {

// Matrix products of 2-D tensors, any float dtype, CPU or CUDA. ATen's, except for float32 on CPUs that have AVX-512 but are not
// Intel's: there MKL stays on 256-bit code, and the product below is about twice as fast (scripts/bench kernels).
// Each element's sum is taken in one fixed order: the same bits for any number of threads.

// a (M, K) * b (N, K)^T -> (M, N)
at::Tensor matmul_nt(const at::Tensor& a, const at::Tensor& b);
// a (M, K) * b (K, N) -> (M, N)
at::Tensor matmul_nn(const at::Tensor& a, const at::Tensor& b);
// out (M, N) = or += a (K, M)^T * b (K, N), all of one dtype
void matmul_tn_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate);

}  // namespace muster::worker::kernels
