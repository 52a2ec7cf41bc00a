#pragma once
// A communicator whose operations start and end late, by random times.

#include <memory>
#include <random>
#include <thread>

#include "comm/collective/communicator.h"

namespace muster::worker::testing {

class DelayedCommunicator : public comm::Communicator {
 public:
  DelayedCommunicator(comm::Communicator& real, unsigned seed) : real_(real), random_(std::make_shared<std::minstd_rand>(seed + 1)) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  std::string_view backend() const override { return real_.backend(); }
  comm::WorkPtr all_reduce(at::Tensor t, comm::ReduceOp op) override { return late([&] { return real_.all_reduce(t, op); }); }
  comm::WorkPtr reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp op) override {
    return late([&] { return real_.reduce_scatter(out, in, op); });
  }
  comm::WorkPtr all_gather(at::Tensor out, at::Tensor in) override { return late([&] { return real_.all_gather(out, in); }); }
  comm::WorkPtr broadcast(at::Tensor t, int root) override { return late([&] { return real_.broadcast(t, root); }); }
  comm::WorkPtr send(at::Tensor t, int to) override { return late([&] { return real_.send(t, to); }); }
  comm::WorkPtr recv(at::Tensor t, int from) override { return late([&] { return real_.recv(t, from); }); }
  comm::WorkPtr barrier() override { return late([&] { return real_.barrier(); }); }
  void group_begin() override { real_.group_begin(); }
  comm::WorkPtr group_end() override { return real_.group_end(); }
  void abort(const std::string& why) override { real_.abort(why); }
  comm::Counters counters() const override { return real_.counters(); }

 private:
  using Random = std::shared_ptr<std::minstd_rand>;  // outlives the communicator with its works
  static void pause(const Random& random) { std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 1500)); }

  class LateWork : public comm::Work {
   public:
    LateWork(comm::WorkPtr real, Random random) : real_(std::move(real)), random_(std::move(random)) {}
    void wait() override {
      pause(random_);
      real_->wait();
    }
    void synchronize(Deadline deadline) override { real_->synchronize(deadline); }
    bool done() override { return real_->done(); }

   private:
    const comm::WorkPtr real_;
    const Random random_;
  };

  template <typename F>
  comm::WorkPtr late(F&& issue) {
    pause(random_);
    return std::make_shared<LateWork>(issue(), random_);
  }

  comm::Communicator& real_;
  const Random random_;
};

}  // namespace muster::worker::testing
