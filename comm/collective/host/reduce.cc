// Compiled with -O3 (comm/CMakeLists.txt). Loops are plain; the compiler makes one version a CPU generation of them.
#include "comm/collective/host/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

// Sanitizers cannot run the resolvers that pick a version.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MUSTER_CLONES
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MUSTER_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define MUSTER_CLONES
#endif

// A version is made of a function with all that is inlined into it.
#define MUSTER_INLINE inline __attribute__((always_inline))

namespace muster::comm::host {
namespace {

struct Sum {
  template <typename T>
  static T apply(T a, T b) { return a + b; }
};
// The NaN is kept whichever side it is on; bitwise or keeps the loop free of branches.
struct Max {
  template <typename T>
  static T apply(T a, T b) { return (a > b) | (a != a) ? a : b; }
};
struct Min {
  template <typename T>
  static T apply(T a, T b) { return (a < b) | (a != a) ? a : b; }
};

// Storage types: how an element is widened to what it is reduced in, and rounded back.
template <typename T>
struct Same {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored x) { return x; }
  static Stored narrow(Wide x) { return x; }
};

// Signed overflow is undefined; sums of int64 wrap as everywhere else.
struct Int64Sum : Same<uint64_t> {};

struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static float widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  static uint16_t narrow(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
};

// Integer and multiply only, so that it vectorises without F16C. Bits of IEEE 754 binary16 from binary32 by scaling with
// powers of two, which are exact; needs denormals not to be flushed.
struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static float widen(uint16_t x) {
    const uint32_t magnitude = static_cast<uint32_t>(x & 0x7fff) << 13;
    const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t special = magnitude | 0x7f800000;  // inf and NaN keep their mantissa
    return std::bit_cast<float>((magnitude >= 0x0f800000 ? special : scaled) | (static_cast<uint32_t>(x & 0x8000) << 16));
  }
  static uint16_t narrow(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Below the smallest normal (2^-14): adding 0.5 makes the float unit round to a multiple of 2^-24.
    const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    const uint32_t finite = magnitude < 0x38800000 ? tiny : normal;
    const uint32_t infinite = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
    return static_cast<uint16_t>((magnitude >= 0x477ff000 ? infinite : finite) | ((bits >> 16) & 0x8000));
  }
};

constexpr size_t kBlock = 2048;  // elements: accumulators stay in the first-level cache


// __may_alias__ and unaligned: slots and messages are bytes.
template <typename T>
using Loose [[gnu::may_alias, gnu::aligned(1)]] = T;

template <typename E, typename Op>
MUSTER_INLINE void reduce_two(void* out_bytes, const void* a_bytes, const void* b_bytes, size_t count) {
  auto* out = static_cast<Loose<typename E::Stored>*>(out_bytes);
  const auto* a = static_cast<const Loose<typename E::Stored>*>(a_bytes);
  const auto* b = static_cast<const Loose<typename E::Stored>*>(b_bytes);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) out[i] = E::narrow(Op::apply(E::widen(a[i]), E::widen(b[i])));
}

template <typename E, typename Op>
MUSTER_INLINE void reduce_block(void* out_bytes, const void* const* in, int inputs, size_t first, size_t n) {
  using Stored = Loose<typename E::Stored>;
  typename E::Wide sum[kBlock];
  const auto input = [&](int k) { return static_cast<const Stored*>(in[k]) + first; };
  const auto *a = input(0), *b = input(1);
  for (size_t i = 0; i < n; ++i) sum[i] = Op::apply(E::widen(a[i]), E::widen(b[i]));
  for (int k = 2; k < inputs; ++k) {
    const auto* c = input(k);
    for (size_t i = 0; i < n; ++i) sum[i] = Op::apply(sum[i], E::widen(c[i]));
  }
  auto* out = static_cast<Stored*>(out_bytes) + first;
  for (size_t i = 0; i < n; ++i) out[i] = E::narrow(sum[i]);
}

template <typename E, typename Op>
MUSTER_INLINE void reduce_all(void* out, const void* const* in, int inputs, size_t count) {
  if (inputs == 2) return reduce_two<E, Op>(out, in[0], in[1], count);
  for (size_t first = 0; first < count; first += kBlock)
    reduce_block<E, Op>(out, in, inputs, first, std::min(kBlock, count - first));
}

template <typename E>
MUSTER_INLINE void reduce_by(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  switch (op) {
    case ReduceOp::kSum: return reduce_all<E, Sum>(out, in, inputs, count);
    case ReduceOp::kMax: return reduce_all<E, Max>(out, in, inputs, count);
    case ReduceOp::kMin: return reduce_all<E, Min>(out, in, inputs, count);
  }
}

// One function a type, because a function is what gets versions; templates cannot have them.
MUSTER_CLONES void reduce_float64(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  reduce_by<Same<double>>(op, out, in, inputs, count);
}
MUSTER_CLONES void reduce_float32(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  reduce_by<Same<float>>(op, out, in, inputs, count);
}
MUSTER_CLONES void reduce_bfloat16(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  reduce_by<BFloat16>(op, out, in, inputs, count);
}
MUSTER_CLONES void reduce_float16(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  reduce_by<Float16>(op, out, in, inputs, count);
}
MUSTER_CLONES void reduce_int64(ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  if (op == ReduceOp::kSum) return reduce_all<Int64Sum, Sum>(out, in, inputs, count);
  reduce_by<Same<int64_t>>(op, out, in, inputs, count);
}

}  // namespace

void reduce(DType dtype, ReduceOp op, void* out, const void* const* in, int inputs, size_t count) {
  MUSTER_CHECK_LE(1, inputs);
  if (inputs == 1) {
    std::memmove(out, in[0], count * size_of(dtype));
    return;
  }
  switch (dtype) {
    case DType::kFloat64: return reduce_float64(op, out, in, inputs, count);
    case DType::kFloat32: return reduce_float32(op, out, in, inputs, count);
    case DType::kBFloat16: return reduce_bfloat16(op, out, in, inputs, count);
    case DType::kFloat16: return reduce_float16(op, out, in, inputs, count);
    case DType::kInt64: return reduce_int64(op, out, in, inputs, count);
    case DType::kUInt8: break;
  }
  throw CheckError("a reduction of uint8");
}

}  // namespace muster::comm::host
