// The optimizer kernels against formulas in float64, written here with ATen's operations.

#include "worker/kernels/optimizers.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "tests/kernels/dtype_cases.h"

namespace muster::worker {
namespace {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor exact(const at::Tensor& t) { return t.to(at::kDouble).clone(); }

kernels::EightBitMoment moment_of_zeros(int64_t n) { return {at::zeros({n}, at::kByte), at::zeros({(n + 255) / 256})}; }

// One buffer of each kind. The gradients have the case's dtype, master the wide one, the model copy the case's.
struct Buffers {
  at::Tensor w, g, m, v, model, scale;
  kernels::EightBitMoment m8, v8;
  int64_t decay;
};

class Optimizers : public ByDtype {
 protected:
  Buffers buffers(int64_t n) const {
    Buffers b{at::randn({n}, wide()), random({n}),   at::randn({n}, wide()), at::rand({n}, wide()), at::full({n}, 9, GetParam().dtype), at::full({1}, 0.37, wide()),
              moment_of_zeros(n),     moment_of_zeros(n), n * 2 / 5};
    kernels::encode_8bit(b.m, b.m8, true);
    kernels::encode_8bit(b.v, b.v8, false);
    return b;
  }
  double rounding() const { return wide() == at::kDouble ? 1e-12 : 1e-6; }
  void expect_model_copy(const Buffers& b) const { EXPECT_TRUE(b.model.equal(b.w.to(b.model.scalar_type()))); }
};

struct Rule {
  const char* name;
  std::function<void(const Buffers&)> apply;
};
const std::vector<Rule>& every_rule() {
  static const std::vector<Rule> rules = {
      {"adamw", [](const Buffers& b) { kernels::adamw(b.w, b.g, b.m, b.v, b.model, b.decay, b.scale, {1e-2, 0.9, 0.95, 1e-8, 0.1, 3}); }},
      {"sgd_momentum", [](const Buffers& b) { kernels::sgd_momentum(b.w, b.g, b.m, b.model, b.decay, b.scale, {1e-2, 0.9, 0.1, true}); }},
      {"lion", [](const Buffers& b) { kernels::lion(b.w, b.g, b.m, b.model, b.decay, b.scale, {1e-2, 0.9, 0.99, 0.1}); }},
      {"adamw_8bit", [](const Buffers& b) { kernels::adamw_8bit(b.w, b.g, b.m8, b.v8, b.model, b.decay, b.scale, {1e-2, 0.9, 0.95, 1e-8, 0.1, 3}); }},
  };
  return rules;
}

std::vector<at::Tensor> all_of(const Buffers& b) { return {b.w, b.m, b.v, b.model, b.m8.codes, b.m8.scales, b.v8.codes, b.v8.scales}; }
std::vector<at::Tensor> copies_of(const Buffers& b) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& t : all_of(b)) copies.push_back(t.clone());
  return copies;
}
bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

TEST_P(Optimizers, NothingChangesWhereTheScaleIsNotFinite) {
  for (const Rule& rule : every_rule()) {
    const Buffers b = buffers(1040);
    const auto before = copies_of(b);
    for (const double scale : {std::nan(""), kInfinity, -kInfinity}) {
      b.scale.fill_(scale);
      rule.apply(b);
      EXPECT_TRUE(same(all_of(b), before)) << rule.name << " " << scale;
    }
    b.scale.fill_(0.5);
    rule.apply(b);
    EXPECT_FALSE(same(all_of(b), before)) << rule.name;
  }
}

TEST_P(Optimizers, NoBitDependsOnTheNumberOfThreads) {
  for (const Rule& rule : every_rule()) {
    const Buffers one = buffers(100'048), start = [&] {
      const auto c = copies_of(one);
      return Buffers{c[0], one.g, c[1], c[2], c[3], one.scale, {c[4], c[5]}, {c[6], c[7]}, one.decay};
    }();
    at::set_num_threads(1);
    rule.apply(one);
    at::set_num_threads(2);
    rule.apply(start);
    at::set_num_threads(1);
    EXPECT_TRUE(same(all_of(one), all_of(start))) << rule.name;
  }
}

TEST_P(Optimizers, EmptyBuffersAreAllowed) {
  for (const Rule& rule : every_rule()) EXPECT_NO_THROW(rule.apply(buffers(0))) << rule.name;
}

TEST_P(Optimizers, SgdFollowsItsFormula) {
  for (const bool nesterov : {false, true}) {
    for (const bool decoupled : {false, true}) {
      for (const double mu : {0.0, 0.9}) {
        const Buffers b = buffers(1003);
        const double lr = 0.03, decay = 0.2;
        const at::Tensor g = exact(b.g).mul(0.37), w = exact(b.w), d = g.clone();
        if (decoupled) {
          w.narrow(0, 0, b.decay).mul_(1 - lr * decay);
        } else {
          d.narrow(0, 0, b.decay).add_(w.narrow(0, 0, b.decay), decay);
        }
        const at::Tensor m = exact(b.m).mul(mu).add(d);
        w.sub_(nesterov ? d.add(m, mu) : m, lr);
        kernels::sgd_momentum(b.w, b.g, b.m, b.model, b.decay, b.scale, {lr, mu, decay, nesterov, decoupled});
        EXPECT_LE(relative_error(b.w, w), rounding()) << nesterov << decoupled << mu;
        EXPECT_LE(relative_error(b.m, m), rounding()) << nesterov << decoupled << mu;
        expect_model_copy(b);
      }
    }
  }
}

TEST_P(Optimizers, TheFirstMomentumOfSgdIsTheGradient) {
  const Buffers b = buffers(48);
  b.m.zero_();
  b.scale.fill_(1);
  kernels::sgd_momentum(b.w, b.g, b.m, b.model, 0, b.scale, {0.1, 0.9, 0.3});
  EXPECT_TRUE(b.m.equal(b.g.to(b.m.scalar_type())));
}

TEST_P(Optimizers, LionFollowsItsFormula) {
  const Buffers b = buffers(1003);
  b.g.narrow(0, 0, 2).zero_();
  b.m.narrow(0, 0, 1).zero_();  // sign(0)
  const at::Tensor g = exact(b.g).mul(0.37), w = exact(b.w), m = exact(b.m);
  w.narrow(0, 0, b.decay).mul_(1 - 1e-2 * 0.1);
  w.sub_(m.mul(0.9).add(g, 0.1).sign(), 1e-2);
  kernels::lion(b.w, b.g, b.m, b.model, b.decay, b.scale, {1e-2, 0.9, 0.99, 0.1});
  EXPECT_LE(relative_error(b.w, w), rounding());
  EXPECT_LE(relative_error(b.m, m.mul(0.99).add(g, 0.01)), rounding());
  expect_model_copy(b);
}

TEST_P(Optimizers, AdamW8BitIsAdamWOfTheDecodedMoments) {
  for (const int64_t n : {16, 256, 272, 1040, 1003}) {
    const Buffers b = buffers(n);
    at::Tensor m = kernels::decode_8bit(b.m8, true).to(wide()), v = kernels::decode_8bit(b.v8, false).to(wide()), w = b.w.clone(), model = b.model.clone();
    const kernels::AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 3};
    kernels::adamw(w, b.g, m, v, model, b.decay, b.scale, step);
    kernels::adamw_8bit(b.w, b.g, b.m8, b.v8, b.model, b.decay, b.scale, step);
    EXPECT_LE(relative_error(b.w, w), rounding()) << n;
    kernels::EightBitMoment m8 = moment_of_zeros(n), v8 = moment_of_zeros(n);
    kernels::encode_8bit(m, m8, true);
    kernels::encode_8bit(v, v8, false);
    // Where rounding in the moments met an edge between two codes, these are neighbours.
    const auto largest_step = [](const at::Tensor& a, const at::Tensor& b) { return a.to(at::kInt).sub(b.to(at::kInt)).abs().max().item<int>(); };
    EXPECT_LE(largest_step(b.m8.codes, m8.codes), 1) << n;
    EXPECT_LE(largest_step(b.v8.codes, v8.codes), 1) << n;
    EXPECT_LE(relative_error(b.m8.scales, m8.scales), 1e-6) << n;
    EXPECT_LE(relative_error(b.v8.scales, v8.scales), 1e-6) << n;
    expect_model_copy(b);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Optimizers, all_dtypes(), dtype_name);

class OptimizerRefusals : public ::testing::Test {
 public:
  const at::Tensor x = at::randn({6}), five = at::randn({5}), scale = at::ones({1}), none;
  const kernels::EightBitMoment m8 = moment_of_zeros(6);
  const kernels::AdamWStep adam{1e-3, 0.9, 0.99, 1e-8, 0, 1};

  void sgd(const at::Tensor& w, const at::Tensor& g, const at::Tensor& m, const at::Tensor& model, int64_t decay, const at::Tensor& s) const {
    kernels::sgd_momentum(w, g, m, model, decay, s, {0.1, 0.9, 0});
  }
  void lion(const at::Tensor& w, const at::Tensor& g, const at::Tensor& m, const at::Tensor& model, int64_t decay, const at::Tensor& s) const {
    kernels::lion(w, g, m, model, decay, s, {0.1, 0.9, 0.99, 0});
  }
  void adamw_8bit(const at::Tensor& w, const kernels::EightBitMoment& m, const kernels::EightBitMoment& v) const {
    kernels::adamw_8bit(w, x, m, v, none, 0, scale, adam);
  }
};

TEST_F(OptimizerRefusals, SgdAndLion) {
  for (const auto rule : {&OptimizerRefusals::sgd, &OptimizerRefusals::lion}) {
    const auto call = [&](const auto&... args) { (this->*rule)(args...); };
    EXPECT_NO_THROW(call(x, x.to(at::kHalf), x.clone(), x.to(at::kBFloat16), 6, scale));
    EXPECT_THROW(call(x.to(at::kHalf), x, x, none, 0, scale), CheckError);             // master in 16 bits
    EXPECT_THROW(call(none, x, x, none, 0, scale), CheckError);
    EXPECT_THROW(call(x, none, x, none, 0, scale), CheckError);
    EXPECT_THROW(call(x, x, none, none, 0, scale), CheckError);
    EXPECT_THROW(call(x, x, x, none, 0, none), CheckError);
    EXPECT_THROW(call(x, five, x, none, 0, scale), CheckError);                        // lengths
    EXPECT_THROW(call(x, x, five, none, 0, scale), CheckError);
    EXPECT_THROW(call(x, x, x, five, 0, scale), CheckError);
    EXPECT_THROW(call(x, x, x.to(at::kDouble), none, 0, scale), CheckError);           // dtypes
    EXPECT_THROW(call(x, x.to(at::kLong), x, none, 0, scale), CheckError);
    EXPECT_THROW(call(x, x, x, none, 0, scale.to(at::kDouble)), CheckError);
    EXPECT_THROW(call(x, x, x, none, 0, at::ones({2})), CheckError);
    EXPECT_THROW(call(x, x, x, none, 7, scale), CheckError);                           // decay
    EXPECT_THROW(call(x, x, x, none, -1, scale), CheckError);
    EXPECT_THROW(call(x, at::randn({6, 2}).select(1, 0), x, none, 0, scale), CheckError);  // strides
    EXPECT_THROW(call(x.to(at::kMeta), x, x, none, 0, scale), CheckError);             // devices
  }
}

TEST_F(OptimizerRefusals, AdamW8Bit) {
  EXPECT_NO_THROW(adamw_8bit(x, m8, moment_of_zeros(6)));
  EXPECT_THROW(adamw_8bit(x, moment_of_zeros(5), m8), CheckError);
  EXPECT_THROW(adamw_8bit(x, m8, {m8.codes, at::zeros({2})}), CheckError);
  EXPECT_THROW(adamw_8bit(x, m8, {m8.codes, at::zeros({1}, at::kDouble)}), CheckError);
  EXPECT_THROW(adamw_8bit(x, {at::zeros({6}), m8.scales}, m8), CheckError);
  EXPECT_THROW(adamw_8bit(x, {m8.codes, none}, m8), CheckError);
  EXPECT_THROW(adamw_8bit(x, {none, m8.scales}, m8), CheckError);
  EXPECT_THROW(kernels::adamw_8bit(x, x, m8, m8, none, 0, scale, {1e-3, 0.9, 0.99, 1e-8, 0, 0}), CheckError);
  EXPECT_THROW(kernels::encode_8bit(x.to(at::kHalf), m8, true), CheckError);
  EXPECT_THROW(kernels::encode_8bit(five, m8, true), CheckError);
  EXPECT_THROW(kernels::decode_8bit({}, true), CheckError);
}

}  // namespace
}  // namespace muster::worker
