#include "worker/data/batch_loader.h"

#include <utility>

#include "comm/base/error.h"

namespace muster::worker {

BatchLoader::BatchLoader(std::shared_ptr<const TokenStream> stream, const LoaderOptions& options)
    : stream_(std::move(stream)), options_(options) {
  MUSTER_CHECK_LT(options_.seq_length, stream_->size());
  MUSTER_CHECK_LE(1, options_.order.micro_batches());
  for (MicroBatch* batch : {&current_, &ahead_}) {
    batch->tokens.resize(options_.order.micro_batch_size * options_.seq_length);
    batch->targets.resize(batch->tokens.size());
  }
  thread_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

const BatchLoader::MicroBatch& BatchLoader::next() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, Deadline::after(options_.timeout).at(), [&] { return full_; })) {
    refuse("data: found no next batch within {} ms, wanted one; does the storage answer?", options_.timeout.count());
  }
  if (error_) std::rethrow_exception(error_);
  std::swap(current_, ahead_);
  full_ = false;
  changed_.notify_all();
  return current_;
}

void BatchLoader::run() {
  for (int64_t number = 0;; ++number) {
    std::exception_ptr error;
    try {
      read(number, ahead_);
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    error_ = error;
    full_ = true;
    changed_.notify_all();
    // Ends with next() or the destructor; after an error there is nothing more to read.
    changed_.wait(lock, [&] { return stop_ || !full_; });
    if (stop_) return;
  }
}

void BatchLoader::read(int64_t number, MicroBatch& into) const {
  const int64_t per_step = options_.order.micro_batches(), length = options_.seq_length;
  into.first_sample = options_.order.first_sample(options_.first_step + number / per_step, number % per_step, options_.rank);
  for (int64_t row = 0; row < options_.order.micro_batch_size; ++row) {
    const int64_t start = sample_start(options_.seed, into.first_sample + row, stream_->size(), length);
    stream_->read(start, length, into.tokens.data() + row * length);
    stream_->read(start + 1, length, into.targets.data() + row * length);
  }
}

}  // namespace muster::worker
