#include "sharding/data_parallel/reducer.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tests/training/ranks.h"

namespace muster::sharding {
namespace {

using worker::testing::run_ranks;

Parameter make(const std::string& name, std::vector<int64_t> shape, bool decay = true) {
  Parameter p;
  p.name = name;
  p.shape = std::move(shape);
  p.decay = decay;
  return p;
}

struct ThreeParameters {
  Parameter a = make("a", {5, 3}), b = make("b", {7}, false), c = make("c", {0, 4});
  FlatModel flat{{&a, &b, &c}, at::Device(at::kCPU), at::kDouble, at::kDouble, {}};
};

double value(const at::Tensor& t) { return t.select(0, 0).flatten().select(0, 0).item<double>(); }
void give(Parameter& p, double v) { p.add_gradient(at::full(p.shape, v, p.grad.options())); }

TEST(Partition, DecayingParametersComeFirstInTheirBucket) {
  const std::vector<ParameterSpec> specs = {{"w", {4}, 4, true}, {"g", {4}, 4, false}, {"v", {4}, 4, true}};
  const Partition p(specs, reverse_registration_order(3), {});
  ASSERT_EQ(p.buckets().size(), 1u);
  EXPECT_EQ(p.buckets()[0].parameters, (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(p.buckets()[0].decay_end, p.offset(1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(p.offset(i) % Partition::kAlignElements, 0);
}

TEST(Partition, FirstBucketIsSmallAndEveryBucketDividesByTheShards) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 10; ++i) specs.push_back({std::to_string(i), {100}, 100, true});
  PartitionOptions options;
  options.first_bucket_bytes = 400;
  options.bucket_bytes = 1200;
  options.shards = 3;
  const Partition p(specs, reverse_registration_order(10), options);
  ASSERT_EQ(p.buckets().size(), 4u);
  EXPECT_EQ(p.buckets()[0].parameters.size(), 1u);
  EXPECT_EQ(p.buckets()[1].parameters.size(), 3u);
  int64_t end = 0;
  for (const auto& b : p.buckets()) {
    EXPECT_EQ(b.begin, end);
    EXPECT_EQ(b.size() % 3, 0);
    end = b.end;
  }
  EXPECT_EQ(end, p.size());
}

TEST(FlatModel, RebuildKeepsValuesAndLeaves) {
  ThreeParameters m;
  m.a.tensor.detach().fill_(1);
  m.b.tensor.detach().fill_(2);
  const at::Tensor leaf = m.b.tensor;
  const Partition old = m.flat.rebuild({1, 2, 0});
  EXPECT_EQ(value(m.a.tensor), 1);
  EXPECT_EQ(leaf.select(0, 0).item<double>(), 2);
  leaf.detach().fill_(9);  // still the same storage as the buffer
  EXPECT_EQ(m.flat.param_buffer().select(0, m.flat.partition().offset(1)).item<double>(), 9);
  EXPECT_EQ(old.bucket_of(0), 0);
}

TEST(FlatModel, HookTakesGradientsThatOnlyAutogradKnows) {
  ThreeParameters m;
  m.flat.hook_autograd(m.b);
  for (int pass = 0; pass < 2; ++pass) {
    m.b.reported = 0;
    m.b.tensor.mul(3.0).sum().backward();
    EXPECT_EQ(m.b.reported, 1);
  }
  EXPECT_EQ(value(m.b.grad), 6.0);
  EXPECT_FALSE(m.b.tensor.grad().defined());
}

TEST(Reducer, SumsOverRanksAndMicroBatches) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      ThreeParameters m;
      Reducer reducer(m.flat, communicator, {});
      for (int step = 0; step < 3; ++step) {
        for (const bool last : {false, true}) {
          reducer.begin_backward(last);
          for (Parameter* p : {&m.a, &m.b, &m.c}) give(*p, communicator.rank() + 1.0 + step);
        }
        reducer.finalize();
        const double wanted = 2.0 * (ranks * (ranks + 1) / 2.0 + ranks * step);
        EXPECT_EQ(value(m.a.grad), wanted);
        EXPECT_EQ(value(m.b.grad), wanted);
        reducer.rebuild_once();
      }
    });
  }
}

TEST(Reducer, ParameterUnusedOnSomeRanksCountsAsZeroThere) {
  run_ranks(3, [](comm::Rendezvous&, comm::Communicator& communicator) {
    ThreeParameters m;
    Reducer reducer(m.flat, communicator, {});
    for (int step = 0; step < 3; ++step) {
      reducer.begin_backward(true);
      if (communicator.rank() == 1) give(m.a, 4);  // nobody uses b in step 1
      if (step != 1) give(m.b, 1);
      reducer.finalize();
      EXPECT_EQ(value(m.a.grad), 4);
      EXPECT_EQ(value(m.b.grad), step != 1 ? 3 : 0);
      reducer.rebuild_once();
    }
  });
}

TEST(Reducer, GradientsThatArriveInDifferentOrderStillMatch) {
  run_ranks(4, [](comm::Rendezvous&, comm::Communicator& communicator) {
    Parameter a = make("a", {100}), b = make("b", {100}), c = make("c", {100});
    PartitionOptions one_each;
    one_each.first_bucket_bytes = one_each.bucket_bytes = 8;
    FlatModel flat({&a, &b, &c}, at::Device(at::kCPU), at::kDouble, at::kDouble, one_each);
    Reducer reducer(flat, communicator, {});
    for (int step = 0; step < 4; ++step) {
      reducer.begin_backward(true);
      std::vector<Parameter*> order = {&a, &b, &c};
      std::rotate(order.begin(), order.begin() + communicator.rank() % 3, order.end());
      for (Parameter* p : order) give(*p, p->name[0]);
      reducer.finalize();
      EXPECT_EQ(value(a.grad), 4 * 'a');
      EXPECT_EQ(value(c.grad), 4 * 'c');
      reducer.rebuild_once();
      EXPECT_EQ(flat.partition().buckets()[0].parameters[0], 0);  // rank 0 saw a first, everywhere
    }
  });
}

TEST(Reducer, AccumulationCommunicatesOnceAStep) {
  run_ranks(2, [](comm::Rendezvous&, comm::Communicator& communicator) {
    ThreeParameters m;
    Reducer reducer(m.flat, communicator, {});
    const auto before = communicator.counters();
    for (int micro = 0; micro < 5; ++micro) {
      reducer.begin_backward(micro == 4);
      for (Parameter* p : {&m.a, &m.b, &m.c}) give(*p, 1);
    }
    reducer.finalize();
    const auto after = communicator.counters();
    const auto kind = static_cast<size_t>(comm::OpKind::kAllReduce);
    EXPECT_EQ(after.calls[kind] - before.calls[kind], static_cast<int64_t>(m.flat.partition().buckets().size()));
    EXPECT_EQ(after.bytes[kind] - before.bytes[kind], m.flat.partition().size() * 8);
  });
}

TEST(ZeroOne, OwnedGradientsAreSummedAndParametersComeTogether) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Parameter a = make("a", {50}), b = make("b", {7}, false);
      PartitionOptions options;
      options.first_bucket_bytes = 8;
      options.shards = ranks;
      FlatModel flat({&a, &b}, at::Device(at::kCPU), at::kDouble, at::kDouble, options);
      Reducer reducer(flat, communicator, {true, 1});
      int64_t owned = 0;
      for (int step = 0; step < 3; ++step) {
        reducer.begin_backward(true);
        if (communicator.rank() == 0) give(a, 2);  // the others do not use it
        give(b, 1);
        reducer.finalize();
        for (const auto& range : reducer.owned()) {
          owned += range.size();
          const at::Tensor parameters = flat.param_buffer().narrow(0, range.begin, range.size());
          parameters.add_(flat.grad_buffer().narrow(0, range.begin, range.size()));  // what an optimizer does
        }
        reducer.publish();
        EXPECT_FALSE(reducer.rebuild_once());
        EXPECT_TRUE(a.use().eq(2.0 * (step + 1)).all().item<bool>());
        EXPECT_TRUE(b.use().eq(1.0 * ranks * (step + 1)).all().item<bool>());
      }
      EXPECT_EQ(owned, 3 * flat.partition().size() / ranks);
    });
  }
}

TEST(WeightDecay, ShrinksMatricesOnceAndNothingElse) {
  for (const int stage : {0, 1}) {
    run_ranks(3, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Parameter a = make("a", {50}), b = make("b", {70}, false), c = make("c", {40});
      PartitionOptions options;
      options.shards = 3;
      FlatModel flat({&a, &b, &c}, at::Device(at::kCPU), at::kDouble, at::kDouble, options);
      flat.param_buffer().fill_(1);
      Reducer reducer(flat, communicator, {true, stage});
      worker::RunConfig config;
      config.weight_decay = 0.5;
      worker::AdamW adamw(flat, reducer, config);
      reducer.begin_backward(true);
      reducer.finalize();  // no gradient at all
      adamw.step(at::ones({1}, at::kDouble), 0.1);
      reducer.publish();
      EXPECT_TRUE(a.use().eq(0.95).all().item<bool>());
      EXPECT_TRUE(b.use().eq(1.0).all().item<bool>());
      EXPECT_TRUE(c.use().eq(0.95).all().item<bool>());
    });
  }
}

TEST(Reducer, ParametersThatDifferAreNamed) {
  try {
    run_ranks(3, [](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      Parameter a = make("a", {5}), b = make(communicator.rank() == 2 ? "x" : "b", {7});
      FlatModel flat({&a, &b}, at::Device(at::kCPU), at::kDouble, at::kDouble, {});
      check_same_parameters(flat.parameters(), rendezvous, Deadline::after(std::chrono::seconds(30)));
    });
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("parameter 1 is 'b [7] Double' on rank 0 and 'x [7] Double' on rank 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace muster::sharding
