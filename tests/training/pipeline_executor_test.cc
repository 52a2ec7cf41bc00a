// The executor on a toy model, one weight a stage, beside the same model in one piece.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "comm/rendezvous/group_rendezvous.h"
#include "sharding/data_parallel/reducer.h"
#include "sharding/pipeline/executor.h"
#include "sharding/pipeline/schedule/generators.h"
#include "sharding/pipeline/schedule/validator.h"
#include "tests/training/ranks.h"
#include "worker/models/ops.h"

namespace muster::sharding::pipeline {
namespace {

using worker::testing::run_ranks;
constexpr int64_t kRows = 3, kWidth = 5;

// Numbers that are a function of what they are for.
at::Tensor numbers(int what, int which) {
  at::Tensor t = at::zeros({what == 0 ? kWidth : kRows, kWidth}, at::kDouble);
  double* data = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) data[i] = std::sin(1.0 + 7.0 * what + 3.0 * which + 0.7 * static_cast<double>(i));
  return t;
}

class ToyStages : public Stages {
 public:
  ToyStages(const std::vector<int>& stages, int last) : last_(last), parameters_(stages.size()) {
    std::vector<Parameter*> all;
    for (size_t i = 0; i < stages.size(); ++i) {
      parameters_[i].name = std::to_string(stages[i]);
      parameters_[i].shape = {kWidth, kWidth};
      by_stage_[stages[i]] = &parameters_[i];
      all.push_back(&parameters_[i]);
    }
    FlatOptions options;
    options.param_dtype = options.grad_dtype = at::kDouble;
    flat_ = std::make_unique<FlatModel>(all, options);
    const c10::AutoGradMode no_graph(false);
    for (const auto& [stage, p] : by_stage_) p->tensor.copy_(numbers(0, stage));
  }
  at::Tensor forward(int stage, int micro_batch, const at::Tensor& input) override {
    const at::Tensor x = stage == 0 ? numbers(1, micro_batch) : input;
    const at::Tensor y = worker::ops::gelu(worker::ops::linear(x, *by_stage_.at(stage), nullptr));
    return stage == last_ ? y.mul(y).sum().view({1}) : y;
  }
  std::vector<Parameter*> parameters(int stage) override { return {by_stage_.at(stage)}; }
  FlatModel& flat() { return *flat_; }
  const std::map<int, Parameter*>& by_stage() const { return by_stage_; }

 private:
  const int last_;
  std::vector<Parameter> parameters_;
  std::map<int, Parameter*> by_stage_;
  std::unique_ptr<FlatModel> flat_;
};

struct Result {
  std::map<int, at::Tensor> gradients;  // by stage
  std::vector<double> losses;
};

Result one_piece(int stages, int micro_batches) {
  std::vector<int> all(stages);
  for (int s = 0; s < stages; ++s) all[s] = s;
  ToyStages toy(all, stages - 1);
  Result result;
  for (int m = 0; m < micro_batches; ++m) {
    at::Tensor x;
    for (int s = 0; s < stages; ++s) x = toy.forward(s, m, x);
    result.losses.push_back(x.item<double>());
    x.backward();
  }
  for (const auto& [stage, p] : toy.by_stage()) result.gradients[stage] = p->grad.clone();
  return result;
}

std::map<Channel, Link> open_links(const Schedule& schedule, int rank, comm::Rendezvous& world, std::vector<std::unique_ptr<comm::Communicator>>& made) {
  std::map<Channel, Link> links;
  const auto deadline = Deadline::after(std::chrono::seconds(60));
  for (const Channel& channel : channels(schedule)) {
    std::vector<int> pair = {std::min(channel.from, channel.to), std::max(channel.from, channel.to)};
    const bool mine = rank == channel.from || rank == channel.to;
    comm::GroupRendezvous group(world, mine ? pair : std::vector<int>{rank}, deadline);
    if (mine) {
      made.push_back(comm::make_host_communicator(group, {"channel", std::chrono::seconds(60)}));
      links[channel] = {made.back().get(), 1 - group.place().rank};
    }
    group.finish(deadline);
  }
  return links;
}

Result pipelined(const Schedule& schedule) {
  Result result;
  result.losses.resize(schedule.micro_batches);
  std::mutex mutex;
  run_ranks(schedule.ranks, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<std::unique_ptr<comm::Communicator>> made;
    ToyStages toy(schedule.stages_of(rank), schedule.stages() - 1);
    const auto none = comm::make_loopback_communicator();
    Reducer reducer(toy.flat(), *none, *none, {});
    Executor executor(schedule, rank, open_links(schedule, rank, rendezvous, made), toy, {{kRows, kWidth}, at::TensorOptions().dtype(at::kDouble)});
    for (int step = 0; step < 2; ++step) {  // the second as the first
      reducer.begin_step(schedule.micro_batches);
      const auto losses = executor.run();
      reducer.finalize();
      EXPECT_EQ(executor.peak_live(), peak_live_activations(schedule)[rank]) << schedule.name;
      const std::lock_guard lock(mutex);
      for (size_t m = 0; m < losses.size(); ++m) result.losses[m] = losses[m].item<double>();
      for (const auto& [stage, p] : toy.by_stage()) result.gradients[stage] = p->grad.clone();
    }
  });
  return result;
}

class EverySchedule : public ::testing::TestWithParam<const char*> {};

TEST_P(EverySchedule, EqualsTheModelInOnePiece) {
  const std::string name = GetParam();
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int micro_batches : {1, 2, 3, 4, 8}) {
      for (const int chunks : {1, 2, 4}) {
        if (name == "zbv" && chunks != 2) continue;
        const Schedule schedule = make_schedule({name, ranks, micro_batches, chunks});
        const Result wanted = one_piece(schedule.stages(), micro_batches), found = pipelined(schedule);
        const std::string where = fmt::format("{} ranks {} micro-batches {} chunks {}", name, ranks, micro_batches, chunks);
        ASSERT_EQ(found.gradients.size(), wanted.gradients.size()) << where;
        for (int m = 0; m < micro_batches; ++m) EXPECT_NEAR(found.losses[m], wanted.losses[m], 1e-12) << where;
        for (const auto& [stage, gradient] : wanted.gradients) {
          EXPECT_LT(found.gradients.at(stage).sub(gradient).abs().max().item<double>(), 1e-12) << where << " stage " << stage;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, ::testing::Values("gpipe", "1f1b", "interleaved-1f1b", "zbv"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace muster::sharding::pipeline
