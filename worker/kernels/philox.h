#pragma once
// Counter-based random numbers: the same (key, counter) gives the same bits on any rank, thread or device.
// Philox-4x32-10 after Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC11).

#include <cstdint>

#if defined(__CUDACC__)
#define MUSTER_HD __host__ __device__ __forceinline__
#else
#define MUSTER_HD inline
#endif

namespace muster::worker {

struct PhiloxBlock {
  uint32_t v[4];
};

MUSTER_HD PhiloxBlock philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// 32 bits to (0, 1): never 0, never 1.
MUSTER_HD double uniform01(uint32_t bits) { return (bits + 0.5) * (1.0 / 4294967296.0); }

// Bits below this are dropped with probability p (up to 2^32 exclusive).
MUSTER_HD uint64_t dropout_threshold(double p) { return static_cast<uint64_t>(p * 4294967296.0); }

// A 64-bit key from a string and a seed (FNV-1a, then a SplitMix64 finish).
inline uint64_t philox_key(uint64_t seed, const char* name) {
  uint64_t h = 0xcbf29ce484222325ull ^ (seed * 0x9E3779B97F4A7C15ull);
  for (; *name; ++name) h = (h ^ static_cast<unsigned char>(*name)) * 0x100000001b3ull;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return h ^ (h >> 31);
}

}  // namespace muster::worker
