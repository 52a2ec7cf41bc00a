#pragma once
// N ranks as N threads of one test process.

#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "comm/collective/backends.h"
#include "worker/train/trainer.h"

namespace muster::worker::testing {

// A stream that repeats nothing for long: token i is a hash of i.
class HashedTokens : public TokenStream {
 public:
  HashedTokens(int64_t size, int64_t vocab) : size_(size), vocab_(vocab) {}
  int64_t size() const override { return size_; }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<uint64_t>(at + i) * 0x9E3779B97F4A7C15ull;
      out[i] = static_cast<int64_t>((x ^ (x >> 29)) % static_cast<uint64_t>(vocab_));
    }
  }

 private:
  int64_t size_, vocab_;
};

inline Dataset hashed_dataset(int64_t vocab = 11) {
  Dataset data;
  data.train = std::make_shared<HashedTokens>(5000, vocab);
  data.val = std::make_shared<HashedTokens>(500, vocab);
  data.vocab_size = vocab;
  return data;
}

inline RunConfig small_config(int ranks, int64_t global_batch = 12, int64_t accumulation = 1) {
  RunConfig c;
  c.num_layers = 2;
  c.num_attention_heads = 2;
  c.hidden_size = 16;
  c.seq_length = 8;
  c.global_batch_size = global_batch;
  c.micro_batch_size = global_batch / ranks / accumulation;
  c.train_iters = c.lr_decay_iters = 20;
  c.lr_warmup_iters = 3;
  c.eval_interval = 0;
  c.eval_iters = 1;
  c.precision = "fp64";
  c.comm_timeout_s = 60;
  return c;
}

// Runs body(rendezvous, communicator) on every rank; the first exception of any rank is thrown again here.
inline void run_ranks(int ranks, const std::function<void(comm::Rendezvous&, comm::Communicator&)>& body) {
  auto rendezvous = comm::make_thread_rendezvous(ranks);
  std::vector<std::exception_ptr> failures(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto communicator = ranks == 1 ? comm::make_loopback_communicator()
                                             : comm::make_host_communicator(*rendezvous[r], {"test", std::chrono::seconds(60)});
        body(*rendezvous[r], *communicator);
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const auto& f : failures) {
    if (f) std::rethrow_exception(f);
  }
}

}  // namespace muster::worker::testing
