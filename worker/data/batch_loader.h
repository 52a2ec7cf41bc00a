#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/base/deadline.h"
#include "worker/data/dataset.h"

namespace muster::worker {

// Which samples of the run's order a rank takes: micro-batch m of step s (both from 0) on rank r holds the samples
// s * global_batch_size + (m * world_size + r) * micro_batch_size and the micro_batch_size - 1 after it. So a step's samples are
// the same set for any number of ranks.
struct SampleOrder {
  int64_t global_batch_size = 1, micro_batch_size = 1;  // sequences
  int world_size = 1;

  int64_t micro_batches() const { return global_batch_size / (micro_batch_size * world_size); }
  int64_t first_sample(int64_t step, int64_t micro_batch, int rank) const {
    return step * global_batch_size + (micro_batch * world_size + rank) * micro_batch_size;
  }
};

struct LoaderOptions {
  SampleOrder order;
  int rank = 0;
  int64_t seq_length = 1;  // tokens
  uint64_t seed = 0;
  int64_t first_step = 0;
  milliseconds timeout{600000};  // of one next()
};

// The micro-batches of one rank, in order; the next one is read by a thread of the loader while this one is used.
//
// Threads: next() from one thread at a time. Ownership: holds the stream. Failure: InputError when the storage gives nothing
// within the timeout; whatever reading threw. Blocking: next() until the micro-batch is read; the destructor until the read under
// way ends.
class BatchLoader {
 public:
  struct MicroBatch {
    int64_t first_sample = 0;
    std::vector<int64_t> tokens, targets;  // (B, T) each; a target is the token one further
  };

  BatchLoader(std::shared_ptr<const TokenStream> stream, const LoaderOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Valid until the next call.
  const MicroBatch& next();

 private:
  void run();
  void read(int64_t number, MicroBatch& into) const;

  const std::shared_ptr<const TokenStream> stream_;
  const LoaderOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_: `ahead_` belongs to the reading thread while full_ is false, to next() while it is true.
  bool full_ = false, stop_ = false;
  std::exception_ptr error_;

  MicroBatch current_, ahead_;
  std::thread thread_;
};

}  // namespace muster::worker
