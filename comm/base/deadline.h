#pragma once

#include <algorithm>
#include <chrono>

namespace muster {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The moment at which a wait gives up. A value; every wait in Muster takes one.
class Deadline {
 public:
  static Deadline after(milliseconds timeout) { return Deadline(Clock::now() + timeout); }
  bool expired() const { return Clock::now() >= at_; }
  // Time left, never negative.
  milliseconds left() const {
    return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(at_ - Clock::now()));
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace muster
