#pragma once
// SharedPath's wait; a header because every collective has its own condition.

#include "comm/collective/host/shared_path.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace muster::comm::host {

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Returns when arrived(rank) holds for every other rank. A rank for which it held is not asked again.
template <typename Predicate>
void SharedPath::await(const Operation& operation, const Predicate& arrived) {
  int next = 0;
  for (int spin = 0; spin < spins_; ++spin) {
    while (next < size_ && (next == rank_ || arrived(next))) ++next;
    if (next == size_) return;
    if (!transfers_.empty()) pump();
    pause_cpu();
  }
  await_slowly(operation, arrived);
}

}  // namespace muster::comm::host
