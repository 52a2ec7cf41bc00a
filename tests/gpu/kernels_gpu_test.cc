// The CUDA kernels against the CPU ones: fresh random inputs, outputs poisoned first where they are given.

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/gpu/on_gpu.h"
#include "worker/kernels/kernels.h"

namespace muster::worker {
namespace {

using namespace testing;

class KernelsOnGpu : public OnGpu {};

TEST_P(KernelsOnGpu, DropoutIsTheSameMask) {
  for (const auto& shape : {std::vector<int64_t>{3, 8, 16}, {5, 7}, {2, 1}}) {
    const at::Tensor x = random(shape);
    const kernels::DropoutKey key{0x1234567890abcdef, 41, 0.3};
    const at::Tensor cpu = kernels::dropout(x, key), on_gpu = kernels::dropout(gpu(x), key);
    EXPECT_TRUE(cpu.eq(0).equal(on_gpu.to(at::kCPU).eq(0)));
    expect_close(cpu, on_gpu, "dropout");
  }
}

TEST_P(KernelsOnGpu, Gelu) {
  for (const int64_t n : {1, 7, 1000, 100003}) {
    const at::Tensor x = random({n}).mul(3), g = random({n});
    expect_close(kernels::gelu(x), kernels::gelu(gpu(x)), "gelu", x.to(at::kDouble).norm().item<double>());
    expect_close(kernels::gelu_backward(g, x), kernels::gelu_backward(gpu(g), gpu(x)), "gelu_backward", g.to(at::kDouble).norm().item<double>());
  }
}

TEST_P(KernelsOnGpu, ResidualLayerNorm) {
  for (const int64_t width : {4, 64, 384, 768, 1600, 2048}) {
    for (const bool full : {false, true}) {
      const int64_t rows = 37;
      const at::Tensor r = random({rows, width}), x = full ? random({rows, width}) : at::Tensor(), w = random({width}), b = full ? random({width}) : at::Tensor();
      const auto cpu = kernels::residual_layer_norm(r, x, w, b), on_gpu = kernels::residual_layer_norm(gpu(r), gpu(x), gpu(w), gpu(b));
      expect_close(cpu.sum, on_gpu.sum, "sum");
      expect_close(cpu.normed, on_gpu.normed, "normed");
      const at::Tensor g = random({rows, width}), past = full ? random({rows, width}) : at::Tensor();
      const auto wide = at::TensorOptions().dtype(GetParam().dtype == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor gw = at::full({width}, 0.5, wide), gb = full ? at::full({width}, 0.25, wide) : at::Tensor();
      const at::Tensor gw2 = gpu(gw).clone(), gb2 = full ? gpu(gb).clone() : gb;
      const at::Tensor dx = kernels::residual_layer_norm_backward(g, past, cpu.sum, cpu.mean, cpu.rstd, w, gw, gb);
      const at::Tensor dx2 = kernels::residual_layer_norm_backward(gpu(g), gpu(past), gpu(cpu.sum), gpu(cpu.mean), gpu(cpu.rstd), gpu(w), gw2, gb2);
      expect_close(dx, dx2, "dx");
      expect_close(gw, gw2, "grad_weight");
      if (full) expect_close(gb, gb2, "grad_bias");
    }
  }
}

TEST_P(KernelsOnGpu, CrossEntropy) {
  for (const int64_t width : {3, 65, 1000, 1025, 50257}) {
    const at::Tensor logits = random({29, width}).mul(2), targets = at::randint(width, {29}, at::kLong);
    targets[3].fill_(-1);
    at::Tensor a = logits.clone(), b = gpu(logits).clone();
    expect_close(kernels::cross_entropy(logits, targets), kernels::cross_entropy(gpu(logits), gpu(targets)), "loss alone");
    expect_close(kernels::cross_entropy_in_place(a, targets), kernels::cross_entropy_in_place(b, gpu(targets)), "loss");
    expect_close(a, b, "gradient");
  }
}

TEST_P(KernelsOnGpu, SumOfSquaresIsRepeatable) {
  for (const int64_t n : {1, 1023, 1000003}) {
    const at::Tensor x = random({n}), y = gpu(x);
    const at::Tensor first = kernels::sum_of_squares(y);
    expect_close(kernels::sum_of_squares(x), first, "sum");
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(kernels::sum_of_squares(y).equal(first));
  }
}

TEST_P(KernelsOnGpu, AdamW) {
  const auto grad_dtype = GetParam().dtype;
  const auto dtype = grad_dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (const int64_t n : {5, 1024, 100003}) {
    const at::Tensor master = at::randn({n}, dtype), m = at::randn({n}, dtype), v = at::rand({n}, dtype), g = random({n});
    const at::Tensor model = at::full({n}, 7, grad_dtype), scale = at::full({1}, 0.37, dtype);
    at::Tensor master2 = gpu(master), m2 = gpu(m), v2 = gpu(v), model2 = gpu(model);
    const kernels::AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 3};
    kernels::adamw(master, g, m, v, model, n / 2, scale, step);
    kernels::adamw(master2, gpu(g), m2, v2, model2, n / 2, gpu(scale), step);
    const double exact = dtype == at::kDouble ? 1e-13 : 1e-6;
    EXPECT_LE(master.sub(master2.to(at::kCPU)).norm().item<double>(), exact * master.norm().item<double>());
    expect_close(m, m2, "m");
    expect_close(v, v2, "v");
    expect_close(model, model2, "model copy");
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, KernelsOnGpu, all_dtypes(), dtype_name);

}  // namespace
}  // namespace muster::worker
