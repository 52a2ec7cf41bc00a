// Muon's orthogonalization against the iteration in float64.

#include "worker/kernels/optimizers.h"

#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "tests/kernels/dtype_cases.h"

namespace muster::worker {
namespace {

using namespace testing;

// The iteration, written plainly.
at::Tensor reference(const at::Tensor& g, int steps) {
  at::Tensor x = g.to(at::kDouble);
  x = x.div(x.norm());
  for (int i = 0; i < steps; ++i) {
    const at::Tensor a = at::mm(x, x.t()), b = a.mul(-4.7750).add(at::mm(a, a), 2.0315);
    x = x.mul(3.4445).add(at::mm(b, x));
  }
  return x;
}

class Orthogonalize : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  double tolerance() const { return GetParam() == at::kDouble ? 1e-11 : 1e-4; }
};

TEST_P(Orthogonalize, IsTheIteration) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 9}, {9, 1}, {8, 8}, {16, 40}, {40, 16}, {96, 65}}) {
    const at::Tensor g = at::randn({rows, cols}, GetParam()), before = g.clone();
    for (const int steps : {0, 1, 5}) {
      const at::Tensor q = kernels::muon_orthogonalize(g, steps);
      EXPECT_EQ(q.scalar_type(), GetParam());
      EXPECT_TRUE(q.is_contiguous() && q.sizes() == g.sizes());
      EXPECT_LE(relative_error(q, reference(g, steps)), tolerance()) << rows << " x " << cols << ", " << steps;
    }
    EXPECT_TRUE(g.equal(before));
  }
}

TEST_P(Orthogonalize, SingularValuesComeNearOne) {
  const at::Tensor u = at::randn({30, 50}, GetParam());
  const at::Tensor q = kernels::muon_orthogonalize(u).to(at::kDouble);
  // All of them lie in [lowest, highest] where q q^T - lowest^2 and highest^2 - q q^T have a Cholesky factor.
  const at::Tensor gram = at::mm(q, q.t()), one = at::eye(30, at::kDouble);
  const auto positive = [](const at::Tensor& t) { return std::get<1>(at::linalg_cholesky_ex(t)).item<int>() == 0; };
  EXPECT_TRUE(positive(gram.sub(one, 0.6 * 0.6)));
  EXPECT_TRUE(positive(one.mul(1.25 * 1.25).sub(gram)));
}

TEST_P(Orthogonalize, TheSizeOfTheMatrixDoesNotMatter) {
  const at::Tensor g = at::randn({12, 20}, GetParam()), q = kernels::muon_orthogonalize(g);
  for (const double size : {1e-30, 1e-12, 1e12, 1e30}) EXPECT_LE(relative_error(kernels::muon_orthogonalize(g.mul(size)), q), tolerance()) << size;
}

TEST_P(Orthogonalize, ZeroStaysZeroAndEmptyEmpty) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3, 4}, {4, 3}, {0, 4}, {4, 0}}) {
    EXPECT_TRUE(kernels::muon_orthogonalize(at::zeros(shape, GetParam())).equal(at::zeros(shape, GetParam())));
  }
}

TEST_P(Orthogonalize, NoBitDependsOnTheNumberOfThreads) {
  const at::Tensor g = at::randn({300, 200}, GetParam());
  at::set_num_threads(1);
  const at::Tensor one = kernels::muon_orthogonalize(g);
  at::set_num_threads(2);
  const at::Tensor two = kernels::muon_orthogonalize(g);
  at::set_num_threads(1);
  EXPECT_TRUE(one.equal(two));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Orthogonalize, ::testing::Values(at::kFloat, at::kDouble), [](const auto& info) { return std::string(toString(info.param)); });

TEST(OrthogonalizeRefuses, WhatIsNoMatrixOfWideFloats) {
  EXPECT_THROW(kernels::muon_orthogonalize(at::randn({6})), CheckError);
  EXPECT_THROW(kernels::muon_orthogonalize({}), CheckError);
  EXPECT_THROW(kernels::muon_orthogonalize(at::randn({3, 4}).t()), CheckError);
  EXPECT_THROW(kernels::muon_orthogonalize(at::randn({3, 4}).to(at::kBFloat16)), CheckError);
  EXPECT_THROW(kernels::muon_orthogonalize(at::randn({3, 4}), -1), CheckError);
}

}  // namespace
}  // namespace muster::worker
