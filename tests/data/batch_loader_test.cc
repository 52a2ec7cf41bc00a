#include "worker/data/batch_loader.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "comm/base/error.h"

namespace muster::worker {
namespace {

// Token at position i is i, so that a batch says where it came from.
class Positions : public TokenStream {
 public:
  explicit Positions(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    MUSTER_CHECK_LE(0, at);
    MUSTER_CHECK_LE(at + count, size_);
    std::iota(out, out + count, at);
  }

 private:
  int64_t size_;
};

class Broken : public Positions {
 public:
  Broken() : Positions(100) {}
  void read(int64_t, int64_t, int64_t*) const override { throw InputError("disk on fire"); }
};

// Gives nothing until it is released.
class Stuck : public Positions {
 public:
  Stuck() : Positions(100) {}
  void read(int64_t, int64_t, int64_t*) const override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return released_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool released_ = false;
};

LoaderOptions options(int64_t global, int64_t micro, int world, int rank, int64_t first_step = 0) {
  LoaderOptions o;
  o.order = {global, micro, world};
  o.rank = rank;
  o.seq_length = 8;
  o.seed = 42;
  o.first_step = first_step;
  return o;
}

TEST(SampleOrder, FollowsTheContract) {
  const SampleOrder order{24, 2, 3};
  EXPECT_EQ(order.micro_batches(), 4);
  EXPECT_EQ(order.first_sample(0, 0, 0), 0);
  EXPECT_EQ(order.first_sample(0, 0, 2), 4);
  EXPECT_EQ(order.first_sample(0, 1, 0), 6);
  EXPECT_EQ(order.first_sample(5, 3, 2), 5 * 24 + (3 * 3 + 2) * 2);
}

TEST(SampleOrder, AStepHoldsEachSampleOnceForAnyLayout) {
  for (const SampleOrder order : {SampleOrder{12, 12, 1}, {12, 3, 1}, {12, 6, 2}, {12, 1, 4}, {12, 2, 3}}) {
    std::multiset<int64_t> samples, wanted;
    for (int rank = 0; rank < order.world_size; ++rank) {
      for (int64_t m = 0; m < order.micro_batches(); ++m) {
        for (int64_t i = 0; i < order.micro_batch_size; ++i) samples.insert(order.first_sample(7, m, rank) + i);
      }
    }
    for (int64_t i = 0; i < 12; ++i) wanted.insert(7 * 12 + i);
    EXPECT_EQ(samples, wanted);
  }
}

TEST(BatchLoader, RowsAreTheSequencesOfTheirSamples) {
  const auto stream = std::make_shared<Positions>(1000);
  BatchLoader loader(stream, options(12, 2, 3, 1));
  for (int64_t call = 0; call < 10; ++call) {
    const auto& batch = loader.next();
    ASSERT_EQ(batch.first_sample, (SampleOrder{12, 2, 3}.first_sample(call / 2, call % 2, 1)));
    for (int64_t row = 0; row < 2; ++row) {
      const int64_t start = sample_start(42, batch.first_sample + row, 1000, 8);
      for (int64_t t = 0; t < 8; ++t) {
        ASSERT_EQ(batch.tokens[row * 8 + t], start + t);
        ASSERT_EQ(batch.targets[row * 8 + t], start + t + 1);
      }
    }
  }
}

TEST(BatchLoader, StartsAtAnyStep) {
  const auto stream = std::make_shared<Positions>(1000);
  BatchLoader whole(stream, options(4, 2, 1, 0)), resumed(stream, options(4, 2, 1, 0, 3));
  for (int i = 0; i < 6; ++i) whole.next();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(whole.next().tokens, resumed.next().tokens);
}

TEST(BatchLoader, ShortestStreamHasOneSequence) {
  BatchLoader loader(std::make_shared<Positions>(9), options(1, 1, 1, 0));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(loader.next().targets.back(), 8);
}

TEST(BatchLoader, ErrorOfReadingReachesTheCaller) {
  BatchLoader loader(std::make_shared<Broken>(), options(1, 1, 1, 0));
  EXPECT_THROW(loader.next(), InputError);
  EXPECT_THROW(loader.next(), InputError);
}

TEST(BatchLoader, StorageThatGivesNothingIsSaid) {
  const auto stream = std::make_shared<Stuck>();
  auto o = options(1, 1, 1, 0);
  o.timeout = milliseconds(20);
  BatchLoader loader(stream, o);
  EXPECT_THROW(loader.next(), InputError);
  stream->release();
}

TEST(BatchLoader, EndsWithoutAnyCall) {
  for (int i = 0; i < 50; ++i) BatchLoader loader(std::make_shared<Positions>(100), options(1, 1, 1, 0));
}

}  // namespace
}  // namespace muster::worker
