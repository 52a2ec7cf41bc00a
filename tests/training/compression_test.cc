#include "sharding/data_parallel/compression.h"

#include <algorithm>
#include <limits>
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "sharding/data_parallel/low_rank.h"
#include "tests/training/ranks.h"

namespace muster::sharding {
namespace {

using worker::testing::run_ranks;
using Values = std::map<std::string, at::Tensor>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
const std::vector<int> kRankCounts = {1, 2, 3, 4, 7};

// The parameters of a test, in buckets of at least `bucket_bytes`.
struct Model {
  explicit Model(at::ScalarType dtype, int64_t bucket_bytes = 3000) {
    add("matrix", {37, 29});
    add("bias", {29});
    add("small", {5, 3});
    add("empty", {0, 4});
    add("columns", {24, 40}, {1, 24});
    add("one", {});
    add("image", {6, 5, 3, 3});
    add("thin", {300, 2});
    make_flat(dtype, bucket_bytes);
  }
  Model(at::ScalarType dtype, std::vector<int64_t> shape) {
    add("only", std::move(shape));
    make_flat(dtype, 1 << 20);
  }

  void add(const std::string& name, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
    Parameter p;
    p.name = name;
    p.shape = std::move(shape);
    p.strides = std::move(strides);
    p.decay = p.shape.size() > 1;
    owned.push_back(std::make_unique<Parameter>(std::move(p)));
  }
  void make_flat(at::ScalarType dtype, int64_t bucket_bytes) {
    FlatOptions options;
    options.param_dtype = options.grad_dtype = dtype;
    options.partition.first_bucket_bytes = options.partition.bucket_bytes = bucket_bytes;
    std::vector<Parameter*> parameters;
    for (const auto& p : owned) parameters.push_back(p.get());
    flat = std::make_unique<FlatModel>(parameters, options);
  }

  void set_gradients(const std::function<at::Tensor(const Parameter&)>& of) {
    for (const auto& p : owned) p->grad.copy_(of(*p));
  }
  // All buckets begin before the first ends, or each ends before the next.
  void sum(CompressedSum& compressed, bool together = true) {
    for (int b = 0; b < flat->buckets(); ++b) {
      compressed.begin(b);
      if (!together) compressed.end(b);
    }
    for (int b = 0; together && b < flat->buckets(); ++b) compressed.end(b);
  }
  Values gradients() const {
    Values values;
    for (const auto& p : owned) values[p->name] = p->grad.clone();
    return values;
  }

  std::vector<std::unique_ptr<Parameter>> owned;
  std::unique_ptr<FlatModel> flat;
};

struct Method {
  std::string name;
  std::function<std::unique_ptr<CompressedSum>(FlatModel&, comm::Communicator&)> make;
};
const std::vector<Method> kMethods = {
    {"int8", [](FlatModel& m, comm::Communicator& c) { return make_int8_sum(m, c); }},
    {"power_sgd", [](FlatModel& m, comm::Communicator& c) { return make_power_sgd(m, c, 2, 5); }},
};

// A rank's gradient in a step, the same wherever it is asked for.
at::Tensor gradient_of(const Parameter& p, int rank, int step) {
  return normal_numbers(1000 * rank + step, p.name, 1, p.numel()).view(p.shape);
}
at::Tensor sum_of(const Parameter& p, int ranks, int step) {
  at::Tensor sum = gradient_of(p, 0, step);
  for (int r = 1; r < ranks; ++r) sum.add_(gradient_of(p, r, step));
  return sum;
}

double largest(const at::Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }
void expect_same(const Values& a, const Values& b, const std::string& what) {
  for (const auto& [name, value] : a) EXPECT_TRUE(at::equal(value, b.at(name))) << name << ", " << what;
}

// Every rank's gradients after `steps` sums.
std::vector<Values> run(const Method& method, int ranks, at::ScalarType dtype, int steps, bool together = true) {
  std::vector<Values> results(ranks);
  run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(dtype);
    const auto compressed = method.make(*model.flat, communicator);
    for (int step = 0; step < steps; ++step) {
      model.set_gradients([&](const Parameter& p) { return gradient_of(p, communicator.rank(), step); });
      model.sum(*compressed, together);
    }
    results[communicator.rank()] = model.gradients();
  });
  return results;
}

TEST(CompressedSum, GivesTheSameBitsOnAllRanksAndTwice) {
  for (const Method& method : kMethods) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      for (const int ranks : kRankCounts) {
        const auto results = run(method, ranks, dtype, 3), again = run(method, ranks, dtype, 3);
        for (const Values& other : results) expect_same(results[0], other, method.name);
        expect_same(results[0], again[0], method.name + " again");
      }
    }
  }
}

TEST(CompressedSum, DoesNotDependOnWhatIsUnderWayTogether) {
  for (const Method& method : kMethods) {
    expect_same(run(method, 3, at::kFloat, 3)[0], run(method, 3, at::kFloat, 3, false)[0], method.name);
  }
}

TEST(CompressedSum, OfOneRankIsItsGradient) {
  for (const Method& method : kMethods) {
    const Model model(at::kDouble);
    const auto results = run(method, 1, at::kDouble, 1);
    for (const auto& p : model.owned) EXPECT_TRUE(at::equal(results[0].at(p->name), gradient_of(*p, 0, 0))) << p->name;
  }
}

// Sum over the steps of what came out, less what went in: its largest element, by step.
std::vector<double> lag(const Method& method, int ranks, int steps,
                        const std::function<at::Tensor(const Parameter&, int rank, int step)>& gradient) {
  std::vector<double> lags(steps);
  run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(at::kDouble);
    const auto compressed = method.make(*model.flat, communicator);
    Values difference;
    for (const auto& p : model.owned) difference[p->name] = at::zeros(p->shape, at::kDouble);
    for (int step = 0; step < steps; ++step) {
      model.set_gradients([&](const Parameter& p) { return gradient(p, communicator.rank(), step); });
      model.sum(*compressed);
      if (communicator.rank() != 0) continue;
      for (const auto& p : model.owned) {
        difference[p->name].add_(p->grad);
        for (int r = 0; r < ranks; ++r) difference[p->name].sub_(gradient(*p, r, step));
        lags[step] = std::max(lags[step], largest(difference[p->name]));
      }
    }
  });
  return lags;
}

TEST(CompressedSum, ErrorFeedbackKeepsTheLagBounded) {
  // A part that stays, which without feedback would be lost anew in every step, and noise.
  const auto gradient = [](const Parameter& p, int rank, int step) {
    return gradient_of(p, rank, -1).add(gradient_of(p, rank, step), 0.1);
  };
  for (const Method& method : kMethods) {
    for (const int ranks : {2, 3, 7}) {
      const auto lags = lag(method, ranks, 200, gradient);
      const double early = *std::max_element(lags.begin() + 50, lags.begin() + 100);
      const double late = *std::max_element(lags.begin() + 150, lags.end());
      EXPECT_LE(late, 1.5 * early) << method.name << " of " << ranks;
      EXPECT_GT(early, 1e-4) << "it is not compressed";
    }
  }
}

TEST(Int8Sum, LagsByLessThanItsSteps) {
  const auto lags = lag(kMethods[0], 4, 100, gradient_of);
  // Half a step of each rank's codes, and of the sum's, which is of at most 4 times the size.
  for (const double l : lags) EXPECT_LE(l, (4 * 0.5 + 0.5 * 4) * 5.0 / 127);
}

TEST(Int8Sum, IsExactForWhatInt8Holds) {
  for (const int ranks : kRankCounts) {
    run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        Model model(dtype, {17, 251});
        const auto compressed = make_int8_sum(*model.flat, communicator);
        const at::Tensor i = at::arange(17 * 251, at::kLong);
        const at::Tensor levels = i.mul(37).remainder(255).sub(127).masked_fill(i.remainder(50).eq(0), 127).view({17, 251});
        model.set_gradients([&](const Parameter&) { return levels.mul(communicator.rank() + 1); });
        model.sum(*compressed);
        EXPECT_TRUE(at::equal(model.owned[0]->grad, levels.mul(ranks * (ranks + 1) / 2).to(dtype))) << ranks;
      }
    });
  }
}

at::Tensor low_rank(const Parameter& p, int rank) {
  if (p.shape.size() != 2) return gradient_of(p, rank, 0);
  at::Tensor sum = at::zeros(p.shape, at::kDouble);
  for (uint64_t k = 0; k < 2; ++k) {
    const at::Tensor left = normal_numbers(k, p.name, 1, p.shape[0])[0], right = normal_numbers(k + 7, p.name, 1, p.shape[1])[0];
    sum.add_(at::outer(left, right), rank + 1.0 + static_cast<double>(k));
  }
  return sum;
}

TEST(PowerSgd, IsExactForLowRankAndForWhatIsNoMatrix) {
  for (const int ranks : kRankCounts) {
    run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kDouble);
      const auto compressed = make_power_sgd(*model.flat, communicator, 3, 5);
      for (const bool zero : {true, false, true, false}) {  // a step without gradients must not end a direction for ever
        model.set_gradients([&](const Parameter& p) { return low_rank(p, communicator.rank()).mul(zero ? 0 : 1); });
        model.sum(*compressed);
        for (const auto& p : model.owned) {
          at::Tensor wanted = at::zeros(p->shape, at::kDouble);
          for (int r = 0; r < ranks && !zero; ++r) wanted.add_(low_rank(*p, r));
          EXPECT_LE(largest(p->grad.sub(wanted)), 1e-12 * ranks * ranks) << p->name << " of " << ranks;
        }
      }
    });
  }
}

TEST(PowerSgd, FindsTheLargestDirectionsOverTheSteps) {
  run_ranks(2, [](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(at::kDouble, {40, 30});
    const auto compressed = make_power_sgd(*model.flat, communicator, 2, 5);
    const at::Tensor noise = normal_numbers(1, "noise", 40, 30), large = low_rank(*model.owned[0], 0);
    double first = 0, last = 0;
    for (int step = 0; step < 10; ++step) {
      model.set_gradients([&](const Parameter&) { return large.add(noise, 0.3 / (1 + 10 * step)); });
      model.sum(*compressed);
      last = model.owned[0]->grad.sub(large.mul(2)).norm().item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first);
  });
}

int64_t bytes_of(const comm::Communicator& c, comm::OpKind kind) { return c.counters().bytes[static_cast<size_t>(kind)]; }

TEST(Int8Sum, MovesAQuarterOfAnAllReduce) {
  for (const int ranks : {2, 3, 4, 7}) {
    run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kFloat, {ranks * 100, 256});
      const auto compressed = make_int8_sum(*model.flat, communicator);
      model.sum(*compressed);
      const int64_t elements = ranks * 100 * 256, codes = elements + elements / 256 * 4;
      EXPECT_EQ(bytes_of(communicator, comm::OpKind::kSend), codes / ranks * (ranks - 1));
      EXPECT_EQ(bytes_of(communicator, comm::OpKind::kRecv), codes / ranks * (ranks - 1));
      EXPECT_EQ(bytes_of(communicator, comm::OpKind::kAllGather), codes);
      EXPECT_EQ(bytes_of(communicator, comm::OpKind::kAllReduce), 0);
      EXPECT_EQ(compressed->state_bytes(), model.flat->grad_bytes());
    });
  }
}

TEST(PowerSgd, MovesThinMatricesAndTheRest) {
  run_ranks(3, [](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(at::kFloat, 1 << 20);
    ASSERT_EQ(model.flat->buckets(), 1);
    const auto compressed = make_power_sgd(*model.flat, communicator, 2, 5);
    model.sum(*compressed);
    // Of 5 by 3 the thin ones would be larger, of 300 by 2 the rank is not smaller.
    const int64_t thin = 2 * (37 + 29 + 24 + 40), rest = 29 + 5 * 3 + 1 + 6 * 5 * 3 * 3 + 300 * 2;
    EXPECT_EQ(bytes_of(communicator, comm::OpKind::kAllReduce), (thin + rest) * 4);
    EXPECT_EQ(communicator.counters().calls[static_cast<size_t>(comm::OpKind::kAllReduce)], 2);
    EXPECT_EQ(compressed->state_bytes(), (37 * 29 + 24 * 40 + 2 * 2 * (29 + 24)) * 4);
  });
}

TEST(CompressedSum, DescendsToTheSameOptimum) {
  for (const Method& method : kMethods) {
    for (const int ranks : {2, 3}) {
      run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
        Model model(at::kDouble);
        const auto compressed = method.make(*model.flat, communicator);
        const auto target = [](const Parameter& p) { return gradient_of(p, 0, 99); };
        for (int step = 0; step < 800; ++step) {
          // Rank r has sum of h_r (x - target)^2 / 2, with h_r in (0.5, 1.5) by element.
          model.set_gradients([&](const Parameter& p) {
            const at::Tensor h = gradient_of(p, communicator.rank(), 77).sigmoid().add(0.5);
            return p.tensor.detach().sub(target(p)).mul(h);
          });
          model.sum(*compressed);
          for (const auto& p : model.owned) p->tensor.detach().sub_(p->grad, 0.06 / ranks);
        }
        for (const auto& p : model.owned) {
          EXPECT_LE(largest(p->tensor.detach().sub(target(*p))), 1e-3) << method.name << " " << p->name << " of " << ranks;
        }
      });
    }
  }
}

// Results of steps 0, 1, 3, with a step between the last two in which the last rank has `bad` in one parameter, or without.
std::vector<Values> with_bad_step(const Method& method, int ranks, const std::string& where, double bad) {
  std::vector<Values> results(ranks);
  run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(at::kFloat, 1 << 20);
    const auto compressed = method.make(*model.flat, communicator);
    for (const int step : {0, 1, 2, 3}) {
      if (step == 2 && where.empty()) continue;
      model.set_gradients([&](const Parameter& p) {
        const at::Tensor g = gradient_of(p, communicator.rank(), step);
        if (step == 2 && p.name == where && communicator.rank() == ranks - 1) g.view({-1})[p.numel() / 2] = bad;
        return g;
      });
      model.sum(*compressed);
      if (step != 2) continue;
      for (const auto& p : model.owned) {
        EXPECT_EQ(p->grad.isfinite().all().item<bool>(), p->name != where) << method.name << " " << p->name << ", bad " << where;
      }
    }
    results[communicator.rank()] = model.gradients();
  });
  return results;
}

TEST(CompressedSum, ShowsWhatIsNotFiniteOnAllRanksAndForgetsTheStep) {
  for (const Method& method : kMethods) {
    for (const int ranks : {2, 3}) {
      const auto wanted = with_bad_step(method, ranks, "", 0);
      for (const std::string where : {"matrix", "bias", "columns", "one", "thin"}) {
        for (const double bad : {kNan, kInf, -kInf}) {
          const auto found = with_bad_step(method, ranks, where, bad);
          for (int r = 0; r < ranks; ++r) expect_same(found[r], wanted[0], method.name + " after a bad " + where);
        }
      }
    }
  }
}

// What a step leaves out comes with the next, which has no gradients of its own; `between` happens after the first.
void expect_the_rest(const Method& method, int ranks, const std::function<void(Model&)>& between, double tolerance) {
  run_ranks(ranks, [&](comm::Rendezvous&, comm::Communicator& communicator) {
    Model model(at::kDouble);
    const auto compressed = method.make(*model.flat, communicator);
    model.set_gradients([&](const Parameter& p) { return gradient_of(p, communicator.rank(), 0); });
    model.sum(*compressed);
    Values sum = model.gradients();
    between(model);
    for (int step = 0; step < 40; ++step) {
      model.set_gradients([](const Parameter& p) { return at::zeros(p.shape, at::kDouble); });
      model.sum(*compressed);
      for (auto& [name, value] : model.gradients()) sum[name].add_(value);
    }
    for (const auto& p : model.owned) {
      EXPECT_LE(largest(sum[p->name].sub(sum_of(*p, ranks, 0))), tolerance) << method.name << " " << p->name;
    }
  });
}

TEST(CompressedSum, KeptErrorsFollowTheirParameters) {
  for (const Method& method : kMethods) {
    for (const int ranks : {2, 3, 7}) {
      expect_the_rest(method, ranks, [](Model&) {}, 1e-9);
      expect_the_rest(method, ranks, [](Model& m) { m.flat->rebuild({0, 7, 2, 5, 4, 1, 3, 6}); }, 1e-9);
    }
  }
}

TEST(CompressedSum, AFrozenParameterKeepsNoError) {
  for (const Method& method : kMethods) {
    run_ranks(3, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kDouble);
      const auto compressed = method.make(*model.flat, communicator);
      model.set_gradients([&](const Parameter& p) { return gradient_of(p, communicator.rank(), 0); });
      model.sum(*compressed);
      for (const auto& p : model.owned) model.flat->set_frozen(*p, p->name == "matrix");
      model.set_gradients([](const Parameter& p) { return at::zeros(p.shape, at::kDouble); });
      model.sum(*compressed);
      for (const auto& p : model.owned) {
        const bool has_error = p->name == "matrix" || p->name == "columns";
        EXPECT_TRUE(!has_error || (largest(p->grad) == 0) == p->frozen) << method.name << " " << p->name;
      }
    });
  }
}

TEST(CompressedSum, WorksWithNothingToSum) {
  for (const Method& method : kMethods) {
    run_ranks(4, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kFloat, {0, 4});
      const auto compressed = method.make(*model.flat, communicator);
      model.sum(*compressed);
      EXPECT_EQ(largest(model.flat->whole_gradients(0)), 0);
    });
  }
}

TEST(CompressedSum, BucketsEndInTheOrderInWhichTheyBegan) {
  for (const Method& method : kMethods) {
    run_ranks(2, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kFloat);
      const auto compressed = method.make(*model.flat, communicator);
      EXPECT_THROW(compressed->end(0), CheckError);
      compressed->begin(0);
      EXPECT_THROW(compressed->end(1), CheckError);
      compressed->end(0);
    });
  }
}

TEST(CompressedSum, APeerThatEndsIsAnError) {
  for (const Method& method : kMethods) {
    EXPECT_THROW(run_ranks(2, [&](comm::Rendezvous&, comm::Communicator& communicator) {
      Model model(at::kFloat);
      const auto compressed = method.make(*model.flat, communicator);
      if (communicator.rank() == 1) return communicator.abort("test");
      compressed->begin(0);
      compressed->end(0);
    }), PeerError);
  }
}

}  // namespace
}  // namespace muster::sharding
