#pragma once
// The order of work that compressed sums share.

#include <deque>
#include <memory>

#include "sharding/data_parallel/compression.h"

namespace muster::sharding {

// One bucket under way: its first phase is issued when this is made.
class BucketExchange {
 public:
  virtual ~BucketExchange() = default;
  // Waits for the first phase, issues the second.
  virtual void turn() = 0;
  // Waits for the second; writes the gradients and keeps the error.
  virtual void finish() = 0;
};

// kept = fresh where the bool on the device says so. Waits for no device.
void keep_where(const at::Tensor& condition, const at::Tensor& fresh, const at::Tensor& kept);

// Turns a bucket's successor before it waits for the bucket, so that a phase is always under way. Threads: as CompressedSum.
class TwoPhaseSum : public CompressedSum {
 public:
  explicit TwoPhaseSum(FlatModel& model);
  void begin(int bucket) final;
  void end(int bucket) final;

 protected:
  virtual std::unique_ptr<BucketExchange> start(int bucket) = 0;
  // Before the first bucket under way; the model's layout may have changed since the last.
  virtual void follow_layout() {}
  FlatModel& model_;

 private:
  struct Flight {
    int bucket = 0;
    std::unique_ptr<BucketExchange> exchange;
    bool turned = false;
  };
  static void turn(Flight& flight);
  std::deque<Flight> flights_;
};

// The sum of one rank.
class NoSum : public CompressedSum {
 public:
  void begin(int) override {}
  void end(int) override {}
  int64_t state_bytes() const override { return 0; }
};

}  // namespace muster::sharding
