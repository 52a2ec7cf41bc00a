#include "worker/kernels/cpu_sgemm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <immintrin.h>

namespace muster::worker::kernels {
namespace {

// A block of kRows x kColumns of c stays in 28 of the 32 vector registers while a slice of kDepth products is added to it
// (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008). b is packed into panels of kColumns,
// zero-padded; a is read where it lies.
constexpr int kRows = 14, kColumns = 32;
constexpr int64_t kDepth = 256;

#define MUSTER_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma")))

struct Block {
  const float* a;  // element (0, 0) of the rows
  int64_t row_stride, depth_stride;
  const float* panel;  // (depth, kColumns)
  int64_t depth;
  float* c;
  int64_t ldc;
  __mmask16 low, high;  // columns that exist
  bool accumulate;
};

template <int R>
MUSTER_AVX512 void multiply_block(const Block& block) {
  __m512 sum[R][2];
  for (int i = 0; i < R; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  const float* a = block.a;
  const float* panel = block.panel;
  for (int64_t k = 0; k < block.depth; ++k, a += block.depth_stride, panel += kColumns) {
    const __m512 b0 = _mm512_load_ps(panel), b1 = _mm512_load_ps(panel + 16);
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i) {
      const __m512 x = _mm512_set1_ps(a[i * block.row_stride]);
      sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
    }
  }
  for (int i = 0; i < R; ++i) {
    float* c = block.c + i * block.ldc;
    if (block.accumulate) {
      sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_maskz_loadu_ps(block.low, c));
      sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_maskz_loadu_ps(block.high, c + 16));
    }
    _mm512_mask_storeu_ps(c, block.low, sum[i][0]);
    _mm512_mask_storeu_ps(c + 16, block.high, sum[i][1]);
  }
}

template <int... R>
constexpr auto block_table(std::integer_sequence<int, R...>) {
  return std::array<void (*)(const Block&), sizeof...(R)>{&multiply_block<R + 1>...};
}
constexpr auto kMultiply = block_table(std::make_integer_sequence<int, kRows>{});

// 16 rows of 16 floats, transposed.
MUSTER_AVX512 void transpose16(const float* from, int64_t stride, float* to, int64_t to_stride) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * stride);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d p = _mm512_castps_pd(t[4 * i]), q = _mm512_castps_pd(t[4 * i + 2]);
    const __m512d u = _mm512_castps_pd(t[4 * i + 1]), v = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, q));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, q));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(u, v));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(u, v));
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    _mm512_store_ps(to + i * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_store_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
  }
}

// Columns [j, j + kColumns) and depths [k, k + depth) of op(b), as (depth, kColumns).
void pack_panel(const Sgemm& g, int64_t j, int64_t k, int64_t depth, float* panel) {
  const int64_t columns = std::min<int64_t>(kColumns, g.n - j);
  if (!g.b_transposed) {
    for (int64_t d = 0; d < depth; ++d, panel += kColumns) {
      std::memcpy(panel, g.b + (k + d) * g.ldb + j, columns * sizeof(float));
      if (columns < kColumns) std::memset(panel + columns, 0, (kColumns - columns) * sizeof(float));
    }
    return;
  }
  const int64_t whole = columns == kColumns ? depth / 16 * 16 : 0;
  for (int64_t d = 0; d < whole; d += 16) {
    for (int half = 0; half < kColumns; half += 16) {
      transpose16(g.b + (j + half) * g.ldb + k + d, g.ldb, panel + d * kColumns + half, kColumns);
    }
  }
  for (int64_t d = whole; d < depth; ++d) {
    for (int64_t x = 0; x < kColumns; ++x) panel[d * kColumns + x] = x < columns ? g.b[(j + x) * g.ldb + k + d] : 0.0f;
  }
}

Block block_of(const Sgemm& g, int64_t i, int64_t j, int64_t k, int64_t depth, const float* panel) {
  Block block;
  block.row_stride = g.a_transposed ? 1 : g.lda;
  block.depth_stride = g.a_transposed ? g.lda : 1;
  block.a = g.a + i * block.row_stride + k * block.depth_stride;
  block.panel = panel;
  block.depth = depth;
  block.c = g.c + i * g.ldc + j;
  block.ldc = g.ldc;
  const int64_t columns = std::min<int64_t>(kColumns, g.n - j);
  const uint32_t mask = columns == 32 ? 0xffffffffu : (1u << columns) - 1;
  block.low = static_cast<__mmask16>(mask);
  block.high = static_cast<__mmask16>(mask >> 16);
  block.accumulate = g.accumulate || k > 0;
  return block;
}

// The packing buffer of a thread, kept for its life: 32 kB.
float* panel_buffer() {
  struct alignas(64) Panel {
    float values[kDepth * kColumns];
  };
  thread_local const auto panel = std::make_unique<Panel>();
  return panel->values;
}

void multiply_rows(const Sgemm& g, int64_t begin, int64_t end) {
  float* panel = panel_buffer();
  for (int64_t k = 0; k < g.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, g.k - k);
    for (int64_t j = 0; j < g.n; j += kColumns) {
      pack_panel(g, j, k, depth, panel);
      for (int64_t i = begin; i < end; i += kRows) {
        kMultiply[std::min<int64_t>(kRows, end - i) - 1](block_of(g, i, j, k, depth, panel));
      }
    }
  }
}

}  // namespace

void sgemm(const Sgemm& g) {
  if (g.k == 0 && !g.accumulate) {
    for (int64_t i = 0; i < g.m; ++i) std::memset(g.c + i * g.ldc, 0, g.n * sizeof(float));
  }
  const int64_t grain = std::max<int64_t>(2 * kRows, (int64_t{1} << 21) / std::max<int64_t>(1, g.n * g.k));
  at::parallel_for(0, g.m, grain, [&](int64_t begin, int64_t end) { multiply_rows(g, begin, end); });
}

bool sgemm_is_better() {
  static const bool better = !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return better;
}

}  // namespace muster::worker::kernels
