#pragma once
// The loops of compressed sums on the CPU, for float and double. Every result is the same for any number of threads and any
// processor: ranks compute them each for itself, and must agree on the bits.

#include <cstdint>

namespace muster::sharding {

constexpr int64_t kCodeBlock = 256;
constexpr int kNanCode = -128;

enum class Into { kReplace, kAdd, kSubtract };

// A block of n <= kCodeBlock values as in int8_codec.h: writes `codes`, returns the scale.
float encode_block(const float* values, int64_t n, int8_t* codes);
float encode_block(const double* values, int64_t n, int8_t* codes);
void decode_block(const int8_t* codes, int64_t n, float scale, float* out, Into into);
void decode_block(const int8_t* codes, int64_t n, float scale, double* out, Into into);

double dot(const float* a, const float* b, int64_t n);
double dot(const double* a, const double* b, int64_t n);
// out += factor * in
void add_scaled(float* out, const float* in, float factor, int64_t n);
void add_scaled(double* out, const double* in, double factor, int64_t n);
// out = factor * in; out may be in
void scale_to(float* out, const float* in, float factor, int64_t n);
void scale_to(double* out, const double* in, double factor, int64_t n);

}  // namespace muster::sharding
