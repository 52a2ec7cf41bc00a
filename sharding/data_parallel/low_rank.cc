#include "sharding/data_parallel/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include "sharding/data_parallel/compression_loops.h"

namespace muster::sharding {
namespace {

// What is left of a row after projection is rounding noise below this part of the row, or below what can be scaled to 1.
template <typename T>
constexpr double kNoise = 64 * std::numeric_limits<T>::epsilon();
constexpr double kTiny = std::numeric_limits<float>::min();

template <typename T>
void orthogonalise_cpu(T* p, int64_t rank, int64_t n) {
  for (int64_t k = 0; k < rank; ++k) {
    T* row = p + k * n;
    const double before = std::sqrt(dot(row, row, n));
    for (int64_t j = 0; j < 2 * k; ++j) {
      const T* other = p + j % k * n;
      const auto along = static_cast<T>(dot(row, other, n));
      add_scaled(row, other, -along, n);
    }
    const double after = std::sqrt(dot(row, row, n));
    const T factor = static_cast<T>(after <= std::max(kNoise<T> * before, kTiny) ? 0 : 1 / after);
    scale_to(row, row, factor, n);
  }
}

template <typename T>
void expand_cpu(const T* p, const T* q, T* out, int64_t rank, int64_t rows, int64_t cols) {
  at::parallel_for(0, rows, 1 + 16384 / (cols * rank + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = out + i * cols;
      scale_to(row, q, p[i], cols);
      for (int64_t k = 1; k < rank; ++k) add_scaled(row, q + k * cols, p[k * rows + i], cols);
    }
  });
}

// Squares of small float32 numbers are none.
at::Tensor length(const at::Tensor& row) { return row.norm(2, at::kDouble); }

uint64_t mix(uint64_t x) {  // SplitMix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// (0, 1): never 0, never 1.
double uniform(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

}  // namespace

void orthogonalise_anywhere(const at::Tensor& p) {
  const double noise = p.scalar_type() == at::kDouble ? kNoise<double> : kNoise<float>;
  for (int64_t k = 0; k < p.size(0); ++k) {
    const at::Tensor row = p[k], before = length(row);
    for (int pass = 0; k > 0 && pass < 2; ++pass) {
      const at::Tensor others = p.narrow(0, 0, k);
      row.sub_(others.t().mv(others.mv(row)));
    }
    const at::Tensor after = length(row);
    row.mul_(at::where(after.le(before.mul(noise).clamp_min(kTiny)), 0, after.reciprocal()).to(p.scalar_type()));
  }
}

void orthogonalise(const at::Tensor& p) {
  if (!p.is_cpu()) return orthogonalise_anywhere(p);
  if (p.scalar_type() == at::kDouble) return orthogonalise_cpu(p.mutable_data_ptr<double>(), p.size(0), p.size(1));
  orthogonalise_cpu(p.mutable_data_ptr<float>(), p.size(0), p.size(1));
}

void expand(const at::Tensor& p, const at::Tensor& q, const at::Tensor& out) {
  const int64_t rank = p.size(0), rows = p.size(1), cols = q.size(1);
  if (!p.is_cpu()) {
    out.copy_(p.t().mm(q));
  } else if (p.scalar_type() == at::kDouble) {
    expand_cpu(p.const_data_ptr<double>(), q.const_data_ptr<double>(), out.mutable_data_ptr<double>(), rank, rows, cols);
  } else {
    expand_cpu(p.const_data_ptr<float>(), q.const_data_ptr<float>(), out.mutable_data_ptr<float>(), rank, rows, cols);
  }
}

at::Tensor normal_numbers(uint64_t seed, std::string_view name, int64_t rows, int64_t cols) {
  uint64_t key = mix(seed);
  for (const char c : name) key = mix(key ^ static_cast<unsigned char>(c));
  const at::Tensor numbers = at::empty({rows, cols}, at::TensorOptions().dtype(at::kDouble));
  double* out = numbers.mutable_data_ptr<double>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {  // Box, Muller
    const uint64_t bits = mix(key + 2 * static_cast<uint64_t>(i)), more = mix(key + 2 * static_cast<uint64_t>(i) + 1);
    out[i] = std::sqrt(-2 * std::log(uniform(bits))) * std::cos(2 * std::numbers::pi * uniform(more));
  }
  return numbers;
}

}  // namespace muster::sharding
