#include "sharding/data_parallel/compression_loops.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

// One function, three code paths, chosen when the program is loaded. No sum is contracted (CMake), so they agree on the bits.
// Sanitizers cannot run the resolvers that choose.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MUSTER_CLONES
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MUSTER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MUSTER_CLONES
#endif
#define MUSTER_INLINE inline __attribute__((always_inline))

namespace muster::sharding {
namespace {

constexpr int64_t kLanes = 8;

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

// |x| as a whole number of the same order.
template <typename T>
MUSTER_INLINE Bits<T> magnitude(T x) {
  return std::bit_cast<Bits<T>>(x) & std::numeric_limits<Bits<T>>::max();
}

template <typename T>
constexpr Bits<T> kLargest = std::bit_cast<Bits<T>>(static_cast<T>(std::numeric_limits<float>::max()));

// Adding and taking away this rounds to the nearest whole number, ties to even.
template <typename T>
constexpr T kRounder = static_cast<T>(3) * (Bits<T>{1} << (std::numeric_limits<T>::digits - 2));

// `values` of a whole block, so that the loops have a fixed length.
template <typename T>
MUSTER_INLINE float encode(const T* __restrict values, int8_t* __restrict codes) {
  Bits<T> top = 0;
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    const Bits<T> m = magnitude(values[i]), finite = m <= kLargest<T> ? m : 0;
    top = finite > top ? finite : top;
  }
  float scale = static_cast<float>(std::bit_cast<T>(top) / static_cast<T>(127));
  if (scale < std::numeric_limits<float>::min()) scale = 0;
  const T divisor = scale == 0 ? static_cast<T>(1) : static_cast<T>(scale);
  for (int64_t i = 0; i < kCodeBlock; ++i) {
    const bool finite = magnitude(values[i]) <= kLargest<T>;
    const T level = (finite ? values[i] : static_cast<T>(0)) / divisor + kRounder<T> - kRounder<T>;
    codes[i] = static_cast<int8_t>(finite ? static_cast<int32_t>(level) : kNanCode);
  }
  return scale;
}

template <typename T>
MUSTER_INLINE float encode_any(const T* values, int64_t n, int8_t* codes) {
  if (n == kCodeBlock) return encode(values, codes);
  T whole[kCodeBlock] = {};
  if (n > 0) std::memcpy(whole, values, n * sizeof(T));
  return encode(whole, codes);
}

template <typename T>
MUSTER_INLINE T value_of(int8_t code, T scale) {
  return code == kNanCode ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(code) * scale;
}

template <typename T>
MUSTER_INLINE void decode(const int8_t* __restrict codes, int64_t n, T scale, T* __restrict out, Into into) {
  if (into == Into::kReplace) {
    for (int64_t i = 0; i < n; ++i) out[i] = value_of(codes[i], scale);
  } else {
    const T sign = into == Into::kAdd ? 1 : -1;
    for (int64_t i = 0; i < n; ++i) out[i] += sign * value_of(codes[i], scale);
  }
}

template <typename T>
MUSTER_INLINE double dot_of(const T* __restrict a, const T* __restrict b, int64_t n) {
  double lanes[kLanes] = {}, sum = 0;
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += static_cast<double>(a[i + l]) * b[i + l];
  }
  for (int64_t i = whole; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

MUSTER_CLONES float encode_block(const float* values, int64_t n, int8_t* codes) { return encode_any(values, n, codes); }
MUSTER_CLONES float encode_block(const double* values, int64_t n, int8_t* codes) { return encode_any(values, n, codes); }
MUSTER_CLONES void decode_block(const int8_t* codes, int64_t n, float scale, float* out, Into into) {
  decode(codes, n, scale, out, into);
}
MUSTER_CLONES void decode_block(const int8_t* codes, int64_t n, float scale, double* out, Into into) {
  decode(codes, n, static_cast<double>(scale), out, into);
}

MUSTER_CLONES double dot(const float* a, const float* b, int64_t n) { return dot_of(a, b, n); }
MUSTER_CLONES double dot(const double* a, const double* b, int64_t n) { return dot_of(a, b, n); }

MUSTER_CLONES void add_scaled(float* __restrict out, const float* __restrict in, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += factor * in[i];
}
MUSTER_CLONES void add_scaled(double* __restrict out, const double* __restrict in, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += factor * in[i];
}
MUSTER_CLONES void scale_to(float* out, const float* in, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = factor * in[i];
}
MUSTER_CLONES void scale_to(double* out, const double* in, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = factor * in[i];
}

}  // namespace muster::sharding
