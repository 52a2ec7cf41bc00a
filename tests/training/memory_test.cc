// What a training holds, counted by the allocator, beside the plan.

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "sharding/plan/memory_plan.h"
#include "tests/training/trained.h"
#include "worker/config/layout.h"

namespace muster::worker {
namespace {

using namespace testing;

void expect_same_parameters(const RunConfig& c) {
  const auto model = make_model(c, 11);
  const auto specs = sharding::model_parameters(memory_input(c, 1, 11).model);
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(parameters[i]->name, specs[i].name);
    EXPECT_EQ(parameters[i]->shape, specs[i].shape);
    EXPECT_EQ(parameters[i]->decay, specs[i].decay);
    EXPECT_EQ(parameters[i]->unit, specs[i].unit);
  }
}

TEST(ModelShapes, AreTheModels) {
  for (const char* name : {"gpt", "llama"}) {
    for (const bool bias : {false, true}) {
      for (const bool tied : {false, true}) {
        for (const int64_t groups : {0, 1}) {
          RunConfig c = small_config(1);
          c.model = name;
          c.add_bias_linear = bias && c.model == "gpt";
          c.untie_embeddings_and_output_weights = !tied;
          c.num_query_groups = groups;
          c.ffn_hidden_size = groups * 40;
          expect_same_parameters(c);
        }
      }
    }
  }
}

// Counts what each thread has allocated and not freed, by the thread that allocated it.
thread_local std::shared_ptr<std::atomic<int64_t>> this_threads_bytes;

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& real) : real_(real) { only_ = this; }
  c10::DataPtr allocate(size_t n) override {
    c10::DataPtr data = real_.allocate(n);
    void* where = data.get();
    if (!where) return data;
    if (this_threads_bytes) *this_threads_bytes += static_cast<int64_t>(n);
    const std::lock_guard lock(mutex_);
    held_[where] = {std::move(data), this_threads_bytes, static_cast<int64_t>(n)};
    return {where, where, &release, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { real_.copy_data(to, from, n); }

 private:
  struct Held {
    c10::DataPtr data;
    std::shared_ptr<std::atomic<int64_t>> bytes;
    int64_t size = 0;
  };
  static void release(void* where) {
    Held held;
    {
      const std::lock_guard lock(only_->mutex_);
      const auto found = only_->held_.find(where);
      held = std::move(found->second);
      only_->held_.erase(found);
    }
    if (held.bytes) *held.bytes -= held.size;
  }
  static inline CountingAllocator* only_ = nullptr;
  c10::Allocator& real_;
  std::mutex mutex_;
  std::unordered_map<void*, Held> held_;
};

struct Counting {
  Counting() : real(*c10::GetCPUAllocator()), counter(new CountingAllocator(real)) { c10::SetCPUAllocator(counter, 1); }
  ~Counting() { c10::SetCPUAllocator(&real, 1); }
  c10::Allocator& real;
  CountingAllocator* const counter;  // not freed: tensors of other tests may still name it
};

TEST(Memory, MeasuredBytesAreThePlansWithin3Percent) {
  const Counting counting;
  for (const char* optimizer : {"adamw", "adamw_8bit", "muon", "sgd"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        RunConfig c = small_config(4, 12, 3);
        c.hidden_size = 64;
        c.optimizer = optimizer;
        c.precision = precision;
        c.zero_stage = stage;
        c.train_iters = 2;
        const auto plan = sharding::plan_memory(memory_input(c, 4, 11));
        const Dataset data = hashed_dataset();
        run_ranks(4, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
          this_threads_bytes = std::make_shared<std::atomic<int64_t>>(0);
          {
            Trainer trainer(c, data, rendezvous, communicator, at::Device(at::kCPU));
            trainer.run(nullptr);
            const auto& flat = trainer.flat();
            const int64_t pools = plan.bytes("gradient buckets") + plan.bytes("incoming shards") + plan.bytes("gathered units");
            const auto wanted = static_cast<double>(plan.persistent());
            EXPECT_NEAR(static_cast<double>(flat.param_bytes() + flat.grad_bytes() + trainer.optimizer().state_bytes()), wanted, 0.03 * wanted)
                << optimizer << " " << precision << " stage " << stage;
            // All that the allocator still counts: persistent, at most the pools, and small change.
            EXPECT_GE(static_cast<double>(*this_threads_bytes), 0.97 * wanted) << optimizer << " " << precision << " stage " << stage;
            EXPECT_LE(static_cast<double>(*this_threads_bytes), 1.03 * (wanted + static_cast<double>(pools)) + 8192) << optimizer << " " << precision << " stage " << stage;
          }
          this_threads_bytes = nullptr;
        });
      }
    }
  }
}

}  // namespace
}  // namespace muster::worker
