#include "sharding/data_parallel/data_parallel.h"

#include <map>
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
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

FlatOptions in_float64(PartitionOptions partition = {}, int stage = 0, int shard = 0, int shards = 1) {
  FlatOptions options;
  options.param_dtype = options.grad_dtype = at::kDouble;
  options.zero_stage = stage;
  options.shard = shard;
  options.shards = shards;
  options.partition = partition;
  return options;
}

struct ThreeParameters {
  Parameter a = make("a", {5, 3}), b = make("b", {7}, false), c = make("c", {0, 4});
  FlatModel flat{{&a, &b, &c}, in_float64()};
};

// Stage 0: replicas alone.
struct ReplicatingReducer {
  ReplicatingReducer(FlatModel& model, comm::Communicator& communicator, Reducer::Options options = {})
      : none(comm::make_loopback_communicator()), reducer(model, *none, communicator, options) {}
  const std::unique_ptr<comm::Communicator> none;
  Reducer reducer;
};

double value(const at::Tensor& t) { return t.select(0, 0).flatten().select(0, 0).item<double>(); }
void give(Parameter& p, double v) { p.add_gradient(at::full(p.shape, v, p.grad.options())); }

TEST(Partition, DecayingParametersComeFirstInTheirBucket) {
  const std::vector<ParameterSpec> specs = {{"w", {4}, true}, {"g", {4}, false}, {"v", {4}, true}};
  const Partition p(specs, reverse_registration_order(3), {});
  ASSERT_EQ(p.buckets().size(), 1u);
  EXPECT_EQ(p.buckets()[0].parameters, (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(p.buckets()[0].decay_end, p.offset(1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(p.offset(i) % Partition::kAlignElements, 0);
}

TEST(Partition, FirstBucketIsSmallAndEveryBucketDividesByTheShards) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 10; ++i) specs.push_back({std::to_string(i), {100}, true});
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
  m.flat.rebuild({1, 2, 0});
  EXPECT_EQ(value(m.a.tensor), 1);
  EXPECT_EQ(leaf.select(0, 0).item<double>(), 2);
  leaf.detach().fill_(9);  // still the same storage as the buffer
  EXPECT_EQ(m.flat.whole_parameters(0).select(0, m.flat.partition().offset(1)).item<double>(), 9);
  EXPECT_EQ(m.flat.partition().offset(1), 16);  // a, with weight decay, comes first
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
      ReplicatingReducer replicating(m.flat, communicator);
      Reducer& reducer = replicating.reducer;
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
    ReplicatingReducer replicating(m.flat, communicator);
    Reducer& reducer = replicating.reducer;
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
    FlatModel flat({&a, &b, &c}, in_float64(one_each));
    ReplicatingReducer replicating(flat, communicator);
    Reducer& reducer = replicating.reducer;
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
    ReplicatingReducer replicating(m.flat, communicator);
    Reducer& reducer = replicating.reducer;
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

// Everything that a trainer of `stage` uses, over `communicator` alone or hybrid over shard groups of two.
struct Sharded {
  Sharded(std::vector<Parameter*> parameters, int stage, comm::Rendezvous& rendezvous, comm::Communicator& communicator, int shard_size = 0,
          bool overlap = true)
      : mesh(cut_ranks(communicator.size(), 1, 1, stage == 0 ? 1 : shard_size), communicator.rank()),
        groups(mesh, rendezvous, communicator,
               [](comm::Rendezvous& r, const std::string& name) { return comm::make_host_communicator(r, {name, std::chrono::seconds(60)}); },
               stage == 3, Deadline::after(std::chrono::seconds(60))),
        parallel(parameters, schedule_of(parameters), in_float64(small_buckets(), stage), groups, options_of(overlap)) {}

  static Reducer::Options options_of(bool overlap) {
    Reducer::Options options;
    options.overlap = overlap;
    return options;
  }
  static PartitionOptions small_buckets() {
    PartitionOptions options;
    options.first_bucket_bytes = options.bucket_bytes = 200;
    return options;
  }
  static UnitSchedule schedule_of(const std::vector<Parameter*>& parameters) {
    UnitSchedule schedule;
    for (const Parameter* p : parameters) schedule.forward.push_back(p->unit);
    schedule.backward.assign(schedule.forward.rbegin(), schedule.forward.rend());
    return schedule;
  }
  // What an optimizer does: owned parameters += owned gradients.
  void add_gradients() {
    for (const auto& u : parallel.flat().updates()) {
      parallel.flat().owned_parameters(u.bucket).narrow(0, u.begin, u.size).add_(parallel.flat().owned_gradients(u.bucket).narrow(0, u.begin, u.size));
    }
    parallel.publish();
  }
  std::map<std::string, at::Tensor> values() {
    std::map<std::string, at::Tensor> all;
    parallel.visit([&](const Parameter& p) { all[p.name] = p.tensor.detach().clone(); });
    return all;
  }
  Mesh mesh;
  Groups groups;
  DataParallel parallel;
};

struct Case {
  int stage, ranks, shard_size;
};
std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (int stage = 0; stage <= 3; ++stage) cases.push_back({stage, ranks, 0});
  }
  for (int stage = 1; stage <= 3; ++stage) cases.push_back({stage, 4, 2});
  return cases;
}

// Shapes that divide by nothing, one element, none, channels last.
struct OddParameters {
  OddParameters() {
    int unit = 0;
    for (Parameter* p : all()) {
      p->unit = unit++ / 2;
      p->tensor = at::Tensor();
    }
    image.strides = {27, 1, 9, 3};
  }
  std::vector<Parameter*> all() { return {&first, &none, &scalar, &vector, &image, &last}; }
  Parameter first = make("first", {13, 7}), none = make("none", {0, 4}), scalar = make("scalar", {}, false), vector = make("vector", {129}, false),
            image = make("image", {2, 3, 3, 3}), last = make("last", {1});
};

TEST(EveryStage, OddParametersGetTheSumOverRanksAndMicroBatches) {
  for (const auto& [stage, ranks, shard_size] : every_case()) {
    run_ranks(ranks, [&, stage = stage, ranks = ranks, shard_size = shard_size](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      OddParameters odd;
      Sharded s(odd.all(), stage, rendezvous, communicator, shard_size);
      s.parallel.initialize([](Parameter& p) { p.tensor.detach().fill_(1); });
      std::map<std::string, at::Tensor> wanted = s.values();
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < 3; ++micro) {
          s.parallel.begin_micro_batch(micro == 2);
          for (Parameter* p : odd.all()) EXPECT_EQ(p->use().sizes(), at::IntArrayRef(p->shape));
          const auto parameters = odd.all();
          for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
            (*p)->use();
            const at::Tensor g = at::arange(std::max<int64_t>((*p)->numel(), 1), at::kDouble).narrow(0, 0, (*p)->numel()).view((*p)->shape);
            (*p)->add_gradient(g.add(communicator.rank() + 10 * micro));
            wanted[(*p)->name].add_(g.mul(ranks)).add_(ranks * (ranks - 1) / 2 + 10 * micro * ranks);
          }
        }
        s.parallel.finalize();
        s.add_gradients();
        s.parallel.rebuild_once();
      }
      for (const auto& [name, value] : s.values()) EXPECT_TRUE(at::equal(value, wanted[name])) << name << " stage " << stage << " of " << ranks;
    });
  }
}

TEST(EveryStage, WhatNoRankOrOnlySomeRanksUseCountsAsZeroAndNeverHangs) {
  for (const auto& [stage, ranks, shard_size] : every_case()) {
    run_ranks(ranks, [&, stage = stage, ranks = ranks, shard_size = shard_size](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      OddParameters odd;
      Sharded s(odd.all(), stage, rendezvous, communicator, shard_size);
      for (int step = 0; step < 3; ++step) {
        for (const bool last : {false, true}) {
          s.parallel.begin_micro_batch(last);
          if (communicator.rank() == 0) odd.first.use(), odd.first.add_gradient(at::ones({13, 7}, at::kDouble));  // unit 0 on rank 0 alone
          if (communicator.rank() == ranks - 1 && last) odd.last.use(), odd.last.add_gradient(at::ones({1}, at::kDouble));
        }
        s.parallel.finalize();
        s.add_gradients();
        s.parallel.rebuild_once();
      }
      const auto values = s.values();
      EXPECT_TRUE(values.at("first").eq(6).all().item<bool>()) << stage << " of " << ranks;
      EXPECT_EQ(values.at("last").item<double>(), 3) << stage << " of " << ranks;
      EXPECT_TRUE(values.at("vector").eq(0).all().item<bool>());
    });
  }
}

TEST(EveryStage, FrozenParametersStandStillAndMayThaw) {
  for (const auto& [stage, ranks, shard_size] : every_case()) {
    run_ranks(ranks, [&, stage = stage, ranks = ranks, shard_size = shard_size](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      OddParameters odd;
      odd.vector.frozen = true;
      Sharded s(odd.all(), stage, rendezvous, communicator, shard_size);
      for (int step = 0; step < 4; ++step) {
        if (step == 2) s.parallel.flat().set_frozen(odd.vector, false), s.parallel.flat().set_frozen(odd.image, true);
        s.parallel.begin_micro_batch(true);
        for (Parameter* p : odd.all()) {
          if (!p->frozen) p->add_gradient(at::ones(p->shape, at::kDouble));
        }
        s.parallel.finalize();
        s.add_gradients();
        s.parallel.rebuild_once();
      }
      const auto values = s.values();
      EXPECT_TRUE(values.at("first").eq(4.0 * ranks).all().item<bool>());
      EXPECT_TRUE(values.at("vector").eq(2.0 * ranks).all().item<bool>());
      EXPECT_TRUE(values.at("image").eq(2.0 * ranks).all().item<bool>());
    });
  }
}

TEST(EveryStage, MovesTheVolumeThatTheTableSays) {
  constexpr int kMicroBatches = 3;
  for (const auto& [stage, ranks, shard_size] : every_case()) {
    if (ranks == 1 || shard_size > 0) continue;
    run_ranks(ranks, [&, stage = stage, ranks = ranks](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      OddParameters odd;
      Sharded s(odd.all(), stage, rendezvous, communicator);
      const auto moved = [&] {  // an all-reduce counts its tensor once and moves it twice
        int64_t bytes = 0;
        std::set<comm::Communicator*> distinct = {&s.groups.shard(), &s.groups.replica(), &s.groups.gather()};
        for (comm::Communicator* c : distinct) {
          const auto b = c->counters().bytes;
          const auto of = [&](comm::OpKind kind) { return b[static_cast<size_t>(kind)]; };
          bytes += 2 * of(comm::OpKind::kAllReduce) + of(comm::OpKind::kReduceScatter) + of(comm::OpKind::kAllGather);
        }
        return bytes;
      };
      const int64_t before = moved(), psi = s.parallel.flat().partition().size() * 8;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        s.parallel.begin_micro_batch(micro + 1 == kMicroBatches);
        for (Parameter* p : odd.all()) p->use();
        const auto parameters = odd.all();
        for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) (*p)->use(), (*p)->add_gradient(at::ones((*p)->shape, at::kDouble));
      }
      s.parallel.finalize();
      s.add_gradients();
      const int64_t volume = moved() - before;
      const int64_t most = stage < 2 ? 2 : stage == 2 ? kMicroBatches + 1 : 3 * kMicroBatches;  // in units of psi
      const int64_t least = stage < 3 ? most : 2 * kMicroBatches;
      EXPECT_LE(volume, most * psi) << stage << " of " << ranks;
      EXPECT_GE(volume, least * psi) << stage << " of " << ranks;
    });
  }
}

TEST(EveryStage, KeepsWhatTheTableSays) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks(4, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      OddParameters odd;
      Sharded s(odd.all(), stage, rendezvous, communicator);
      const int64_t whole = s.parallel.flat().partition().size() * 8;
      EXPECT_EQ(s.parallel.flat().param_bytes(), stage > 2 ? whole / 4 : whole);
      EXPECT_EQ(s.parallel.flat().grad_bytes(), stage > 1 ? whole / 4 : whole);
    });
  }
}

TEST(ZeroThree, UnitsOutsideTheScheduleAreNamed) {
  OddParameters odd;
  run_ranks(1, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
    Sharded s(odd.all(), 3, rendezvous, communicator);
    s.parallel.begin_forward();
    odd.last.use();
    try {
      odd.first.use();
      FAIL() << "no error";
    } catch (const CheckError& e) {
      EXPECT_NE(std::string(e.what()).find("first"), std::string::npos) << e.what();
    }
  });
}

TEST(WeightDecay, ShrinksMatricesOnceAndNothingElse) {
  for (const int stage : {0, 1, 2, 3}) {
    run_ranks(3, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      Parameter a = make("a", {50}), b = make("b", {70}, false), c = make("c", {40});
      Sharded s({&a, &b, &c}, stage, rendezvous, communicator);
      s.parallel.initialize([](Parameter& p) { p.tensor.detach().fill_(1); });
      worker::RunConfig config;
      config.weight_decay = 0.5;
      const auto adamw = worker::make_optimizer(s.parallel, config);
      s.parallel.begin_micro_batch(true);
      s.parallel.finalize();  // no gradient at all
      adamw->step(at::ones({1}, at::kDouble), 0.1);
      s.parallel.publish();
      const auto values = s.values();
      EXPECT_TRUE(values.at("a").eq(0.95).all().item<bool>());
      EXPECT_TRUE(values.at("b").eq(1.0).all().item<bool>());
      EXPECT_TRUE(values.at("c").eq(0.95).all().item<bool>());
    });
  }
}

TEST(Reducer, ParametersThatDifferAreNamed) {
  try {
    run_ranks(3, [](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
      Parameter a = make("a", {5}), b = make(communicator.rank() == 2 ? "x" : "b", {7});
      FlatModel flat({&a, &b}, in_float64());
      check_same_parameters(flat.parameters(), rendezvous, Deadline::after(std::chrono::seconds(30)));
    });
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("parameter 1 is 'b [7] Double' on rank 0 and 'x [7] Double' on rank 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace muster::sharding
