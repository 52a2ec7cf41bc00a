#pragma once

#include <cstdint>

namespace muster::worker::kernels {

// float32 matrix product with AVX-512: c (m, n) row-major with row stride ldc = or += op(a) op(b).
// a: element (i, k) at a[i * lda + k], or a[k * lda + i] where a_transposed.
// b: element (k, j) at b[k * ldb + j], or b[j * ldb + k] where b_transposed.
// The caller's buffers must not overlap c. Threads: at::parallel_for over blocks of rows. Only where sgemm_is_better().
struct Sgemm {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  bool a_transposed;
  const float* b;
  int64_t ldb;
  bool b_transposed;
  float* c;
  int64_t ldc;
  bool accumulate;
};
void sgemm(const Sgemm& product);

// True where this beats the library's: AVX-512 on a processor that is not Intel's.
bool sgemm_is_better();

}  // namespace muster::worker::kernels
