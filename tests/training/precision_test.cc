// Loss scale, steps that are skipped, 16-bit training.

#include <limits>

#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "tests/training/trained.h"
#include "worker/config/layout.h"
#include "worker/models/initialize.h"
#include "worker/precision/loss_scaler.h"
#include "worker/precision/precision.h"
#include "worker/train/batches.h"

namespace muster::worker {
namespace {

using namespace testing;

RunConfig fp16_config() {
  RunConfig c;
  c.precision = "fp16";
  c.fp16_initial_scale_power = 4;
  c.fp16_loss_scale_window = 3;
  return c;
}

TEST(LossScaler, OtherPrecisionsHaveNone) {
  LossScaler scaler(RunConfig{});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(LossScaler, ConstantStays) {
  RunConfig c = fp16_config();
  c.fp16_loss_scale = 128;
  LossScaler scaler(c);
  for (int i = 0; i < 10; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, DoublesAfterAWindowAndHalvesAfterTheHysteresis) {
  RunConfig c = fp16_config();
  LossScaler scaler(c);
  for (int i = 0; i < 3; ++i) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32);
  scaler.update(false);  // hysteresis 2: the first overflow is forgiven
  EXPECT_EQ(scaler.scale(), 32);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);  // no window without overflow in between
  EXPECT_EQ(scaler.scale(), 8);
  for (int i = 0; i < 3; ++i) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);  // the window restored the hysteresis
}

TEST(LossScaler, NeverBelowTheLowest) {
  RunConfig c = fp16_config();
  c.fp16_min_loss_scale = 8;
  LossScaler scaler(c);
  for (int i = 0; i < 50; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, ConsecutiveHysteresisForgivesAgainAfterOneFiniteStep) {
  RunConfig c = fp16_config();
  c.fp16_loss_scale_window = 1000;
  for (const bool consecutive : {false, true}) {
    c.fp16_consecutive_hysteresis = consecutive;
    LossScaler scaler(c);
    for (const bool finite : {false, true, false, true}) scaler.update(finite);
    EXPECT_EQ(scaler.scale(), consecutive ? 16 : 8);
  }
}

// A model whose gradients are not finite in some steps, on one rank.
class Poisoned : public Model {
 public:
  Poisoned(std::unique_ptr<Model> model, std::function<bool(int64_t step)> bad) : model_(std::move(model)), bad_(std::move(bad)) {}
  std::vector<sharding::Parameter*> parameters() override { return model_->parameters(); }
  sharding::UnitSchedule units() const override { return model_->units(); }
  at::Tensor next_token_logits(const at::Tensor& tokens) override { return model_->next_token_logits(tokens); }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) override {
    PassContext changed = pass;
    if (bad_(pass.step)) changed.gradient_scale = std::numeric_limits<double>::infinity();
    return model_->loss(tokens, targets, changed);
  }

 private:
  const std::unique_ptr<Model> model_;
  const std::function<bool(int64_t)> bad_;
};

// One rank's steps without a Trainer.
struct Steps {
  Steps(const RunConfig& c, comm::Rendezvous& rendezvous, comm::Communicator& communicator, std::function<bool(int64_t)> bad)
      : config(c),
        model(make_model(c, 11), std::move(bad)),
        groups(sharding::Mesh(mesh_sizes(c, communicator.size()), communicator.rank()), rendezvous, communicator,
               [](comm::Rendezvous& r, const std::string& name) { return comm::make_host_communicator(r, {name, std::chrono::seconds(60)}); },
               c.zero_stage == 3, Deadline::after(std::chrono::seconds(60))),
        parallel(model.parameters(), model.units(), options(), groups, {}) {
    parallel.initialize([](sharding::Parameter& p) { initialize_parameter(p, 7); });
    optimizer = make_optimizer(parallel, config);
    training = std::make_unique<TrainingStep>(config, model, parallel, *optimizer);
  }
  sharding::FlatOptions options() const {
    sharding::FlatOptions o;
    o.param_dtype = precision_of(config).parameters;
    o.grad_dtype = precision_of(config).gradients;
    o.zero_stage = static_cast<int>(config.zero_stage);
    return o;
  }
  StepOutcome run(int64_t step) {
    const Dataset data = hashed_dataset();
    std::vector<int64_t> starts(config.micro_batch_size);
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int64_t>(17 * i) + 100 * groups.world().rank();
    return training->run({make_batch(*data.train, starts, config.seq_length, at::Device(at::kCPU))}, step);
  }
  std::map<std::string, at::Tensor> values() {
    std::map<std::string, at::Tensor> all;
    parallel.visit([&](const sharding::Parameter& p) { all[p.name] = p.tensor.detach().clone(); });
    return all;
  }

  const RunConfig config;
  Poisoned model;
  sharding::Groups groups;
  sharding::DataParallel parallel;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<TrainingStep> training;
};

TEST(SkippedSteps, OneRanksGradientsSkipTheStepForAllAndChangeNothing) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* precision : {"fp32", "bf16", "fp16"}) {
      run_ranks(3, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
        RunConfig c = small_config(3);
        c.precision = precision;
        c.zero_stage = stage;
        const bool culprit = communicator.rank() == 1;
        Steps with(c, rendezvous, communicator, [&](int64_t step) { return step == 1 && culprit; });
        with.run(0);
        const auto before = with.values();
        const StepOutcome outcome = with.run(1);
        EXPECT_EQ(outcome.skipped.item<double>(), 1) << precision << " " << stage;
        for (const auto& [name, value] : with.values()) EXPECT_TRUE(at::equal(value, before.at(name))) << name << " " << precision << " " << stage;
        EXPECT_EQ(with.run(2).skipped.item<double>(), 0);
        EXPECT_FALSE(at::equal(with.values().at("token_embedding"), before.at("token_embedding")));
      });
    }
  }
}

TEST(SkippedSteps, TooManyInARowEndTheRunNamingStepAndTensor) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks(3, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      RunConfig c = small_config(3);
      c.zero_stage = stage;
      c.max_skipped_steps = 3;
      Steps steps(c, rendezvous, communicator, [&](int64_t step) { return step >= 1 && communicator.rank() == 2; });
      for (int64_t step = 0; step < 3; ++step) steps.run(step);
      try {
        steps.run(3);
        FAIL() << "no error";
      } catch (const DivergedError& e) {
        const std::string what = e.what();
        EXPECT_NE(what.find("step 4"), std::string::npos) << what;
        EXPECT_NE(what.find("first in token_embedding"), std::string::npos) << what;
      }
    });
  }
}

TEST(Precisions, GradientsMayTravelInSixteenBits) {
  for (const char* wire : {"bf16", "fp16"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int shard_size : {0, 2}) {
        RunConfig c = small_config(4, 12, 1);
        if (stage == 0 && shard_size > 0) continue;
        c.precision = "fp32";
        const Trained wanted = train(4, c);
        c.communication_data_type = wire;
        c.zero_stage = stage;
        c.zero_shard_size = shard_size;
        const Trained found = train(4, c);
        EXPECT_TRUE(found.ranks_agree);
        EXPECT_GT(largest_difference(wanted, found), 0) << "the wire's dtype had no effect";
        EXPECT_LT(largest_difference(wanted, found), 1e-2) << wire << " " << stage;
        EXPECT_NEAR(wanted.losses.back(), found.losses.back(), 1e-3) << wire << " " << stage;
      }
    }
  }
}

TEST(Precisions, GradientsMayBeAccumulatedInSixteenBits) {
  for (int stage = 0; stage <= 3; ++stage) {
    RunConfig c = small_config(2, 12, 3);
    c.precision = "bf16";
    const Trained wanted = train(2, c);
    c.grad_accum_dtype = "bf16";
    c.zero_stage = stage;
    const Trained found = train(2, c);
    EXPECT_GT(largest_difference(wanted, found), 0) << "the dtype had no effect";
    EXPECT_NEAR(wanted.losses.back(), found.losses.back(), 1e-2) << stage;
  }
}

TEST(Precisions, SixteenBitsFollowFloat32) {
  for (const char* precision : {"bf16", "fp16"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      RunConfig c = small_config(2);
      c.precision = "fp32";
      c.lr = 3e-3;
      c.log_interval = 1;
      const Trained wanted = train(2, c);
      c.precision = precision;
      c.zero_stage = stage;
      const Trained found = train(2, c);
      for (size_t i = 0; i < wanted.losses.size(); ++i) EXPECT_NEAR(found.losses[i], wanted.losses[i], 3e-2) << precision << " " << stage << " step " << i;
    }
  }
}

}  // namespace
}  // namespace muster::worker
