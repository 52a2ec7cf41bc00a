#pragma once
// The dynamic map of 8-bit optimizer states (Dettmers, "8-bit approximations for parallelism in deep learning", 2016; Dettmers et al.,
// "8-bit optimizers via block-wise quantization", 2022): in the bits of a code the leading zeros are a decimal exponent, the first 1 ends
// them, and what is left is a fraction, the middle of one of 2^bits equal parts of [0.1, 1]. So a magnitude's level is its bits:
// level 0 is 0, level 2^b + i is (part i of 2^b) * 10^-(top - b), and the level after the last is 1.
//
// Unsigned: code = level - 1 (top 7, levels 2 to 256), and level 1, which has no fraction bit, is 0.
// Signed: code = 127 + level, or 128 - level below zero (top 6, levels 0 to 128): the negative half has no level 1, zero has its code.

#include <array>
#include <cstdint>

#ifdef __CUDACC__
#define MUSTER_BOTH __host__ __device__
#else
#define MUSTER_BOTH
#endif

namespace muster::worker::kernels {

constexpr int kMapTop = 7;  // signed: one less

// 2^b + i, b = 0 .. top. One division of whole numbers, so that every compiler gives the same value.
MUSTER_BOTH constexpr double level_value(int level, int top) {
  if (level == 0) return 0;
  int b = 0;
  while (level >> (b + 1)) ++b;
  if (b > top) return 1;
  const double parts = 1 << b, i = level - (1 << b);
  double power = 1;
  for (int e = b; e < top; ++e) power *= 10;
  return (2 * parts + 9 * (2 * i + 1)) / (20 * parts * power);
}

MUSTER_BOTH constexpr float map_value(int code, bool is_signed) {
  if (!is_signed) return static_cast<float>(code == 0 ? 0 : level_value(code + 1, kMapTop));
  const int level = code - 127;
  return static_cast<float>(level >= 0 ? level_value(level, kMapTop - 1) : -level_value(1 - level, kMapTop - 1));
}

// Where the nearest value changes. Between the edges from[b] and from[b + 1] parts are equally wide.
template <int kTop>
struct MapEdges {
  float from[kTop + 1];   // half way between the last level below 2^b and level 2^b
  float scale[kTop + 1];  // parts in a unit: x * scale[b] + 8/9 2^b is the level
  float one;              // half way between the last level below 1 and 1
};
template <int kTop>
constexpr MapEdges<kTop> map_edges() {
  MapEdges<kTop> edges{};
  double power = 1;
  for (int b = kTop; b >= 0; --b, power *= 10) {
    edges.from[b] = static_cast<float>((level_value((1 << b) - 1, kTop) + level_value(1 << b, kTop)) / 2);
    edges.scale[b] = static_cast<float>((1 << b) * power / 0.9);
  }
  edges.one = static_cast<float>((level_value((2 << kTop) - 1, kTop) + 1) / 2);
  return edges;
}

// The level nearest to x in [0, 1], where levels 1 .. kLeast - 1 do not exist. Any other x gives some level, at most that of 1.
template <int kTop, int kLeast>
MUSTER_BOTH inline int nearest_level(float x) {
  constexpr MapEdges<kTop> edges = map_edges<kTop>();
  constexpr float zero = static_cast<float>(level_value(kLeast, kTop) / 2);
  float parts = kLeast, scale = edges.scale[kLeast - 1];  // kLeast is 1 or 2
#pragma GCC unroll 8
  for (int b = kLeast; b <= kTop; ++b) {
    const bool above = x >= edges.from[b];
    parts = above ? static_cast<float>(1 << b) : parts;
    scale = above ? edges.scale[b] : scale;
  }
  const float level = x * scale + parts * (8.0f / 9.0f), highest = 2 * parts - 0.5f;
  const float within = level > highest ? highest : level > parts ? level : parts;  // NaN: parts
  const int nearest = static_cast<int>(within);
  return x < zero ? 0 : x > edges.one ? 2 << kTop : nearest;
}

// x in [-1, 1].
MUSTER_BOTH inline int nearest_signed_code(float x) {
  constexpr int kTop = kMapTop - 1;
  constexpr float second = static_cast<float>(level_value(2, kTop) / 2);
  const float size = x < 0 ? -x : x;
  const int level = nearest_level<kTop, 1>(size);
  const int below = size < second ? 127 : level < 2 ? 126 : 128 - level;
  return x < 0 ? below : 127 + level;
}
// x in [0, 1]. positive: not code 0.
MUSTER_BOTH inline int nearest_unsigned_code(float x, bool positive) {
  const int level = nearest_level<kMapTop, 2>(x);
  return level > 0 ? level - 1 : positive ? 1 : 0;
}
// What a value is multiplied by; 0 for a block of zeros, or of values so small that nothing is left of them.
MUSTER_BOTH inline float inverse_scale(float largest) { return largest >= 1e-38f ? 1.0f / largest : 0.0f; }

constexpr std::array<float, 256> dynamic_map(bool is_signed) {
  std::array<float, 256> map{};
  for (int code = 0; code < 256; ++code) map[code] = map_value(code, is_signed);
  return map;
}

}  // namespace muster::worker::kernels
