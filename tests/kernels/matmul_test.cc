// Matrix products and the short attention, against ATen in float64.

#include "worker/kernels/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "worker/kernels/attention.h"
#include "worker/kernels/cpu_sgemm.h"

namespace muster::worker::kernels {
namespace {

double error(const at::Tensor& found, const at::Tensor& wanted) {
  return found.to(at::kDouble).sub(wanted).norm().item<double>() / (1e-30 + wanted.norm().item<double>());
}

class Matmul : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(Matmul, EqualsTheExactProduct) {
  const auto [m, n, k] = GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-6 : dtype == at::kDouble ? 1e-14 : 1e-2;
    const auto random = [&](int64_t a, int64_t b) { return at::randn({a, b}, at::kDouble).to(dtype); };
    const auto d = [](const at::Tensor& t) { return t.to(at::kDouble); };
    const at::Tensor a = random(m, k), bt = random(n, k), b = random(k, n), at_ = random(k, m);
    EXPECT_LE(error(matmul_nt(a, bt), at::mm(d(a), d(bt).t())), tolerance);
    EXPECT_LE(error(matmul_nn(a, b), at::mm(d(a), d(b))), tolerance);
    at::Tensor out = at::full({m, n}, 1e30, dtype);
    matmul_tn_out(out, at_, b, false);
    EXPECT_LE(error(out, at::mm(d(at_).t(), d(b))), tolerance);
    const at::Tensor before = out.clone();
    matmul_tn_out(out, at_, b, true);
    EXPECT_LE(error(out, d(before).mul(2)), 2 * tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Matmul,
                         ::testing::Values(std::tuple{1, 1, 1}, std::tuple{14, 32, 16}, std::tuple{15, 33, 17}, std::tuple{13, 31, 255}, std::tuple{29, 65, 256},
                                           std::tuple{7, 100, 257}, std::tuple{64, 64, 600}, std::tuple{128, 384, 384}, std::tuple{384, 65, 128}));

TEST(MatmulStrides, RowsOfAWiderMatrix) {
  const at::Tensor wide = at::randn({20, 96}), b = at::randn({40, 32});
  const at::Tensor part = wide.narrow(1, 32, 32);
  EXPECT_LE(error(matmul_nt(part, b), at::mm(part.to(at::kDouble), b.to(at::kDouble).t())), 1e-6);
}

TEST(MatmulThreads, NoBitChanges) {
  const at::Tensor a = at::randn({300, 200}), b = at::randn({70, 200});
  at::set_num_threads(1);
  const at::Tensor one = matmul_nt(a, b);
  at::set_num_threads(2);
  const at::Tensor two = matmul_nt(a, b);
  at::set_num_threads(1);
  EXPECT_TRUE(one.equal(two));
}

TEST(MatmulArguments, WrongOnesAreRefused) {
  if (!sgemm_is_better()) GTEST_SKIP() << "this processor uses ATen's product, which has its own messages";
  EXPECT_THROW(matmul_nt(at::randn({3, 4}), at::randn({3, 5})), CheckError);
  EXPECT_THROW(matmul_nn(at::randn({3, 4}), at::randn({5, 3})), CheckError);
}

TEST(ShortAttention, EqualsAtensFlashAttention) {
  for (const auto& [batch, length, heads, width] : std::vector<std::array<int64_t, 4>>{{1, 1, 1, 4}, {2, 7, 3, 5}, {3, 64, 4, 32}, {1, 130, 2, 16}}) {
    const int64_t rows = batch * length, columns = heads * width;
    const at::Tensor qkv = at::randn({rows, 3 * columns}), grad = at::randn({rows, columns});
    if (!short_attention_fits(qkv, length)) GTEST_SKIP() << "this processor uses ATen's attention";
    const at::Tensor all = qkv.to(at::kDouble).view({batch, length, 3, heads, width});
    const auto part = [&](int64_t i) { return all.select(2, i).transpose(1, 2); };
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(part(0), part(1), part(2), 0.0, true);
    const at::Tensor g = grad.to(at::kDouble).view({batch, length, heads, width}).transpose(1, 2);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(g, part(0), part(1), part(2), out, lse, 0.0, true);
    const auto ours = short_attention(qkv, batch, heads);
    EXPECT_LE(error(ours.out, out.transpose(1, 2).reshape({rows, columns})), 2e-6);
    const at::Tensor wanted = at::stack({dq, dk, dv}, 0).permute({1, 3, 0, 2, 4}).reshape({rows, 3 * columns});
    EXPECT_LE(error(short_attention_backward(grad, qkv, ours, batch, heads), wanted), 5e-6);
  }
}

}  // namespace
}  // namespace muster::worker::kernels
