// The CUDA kernels of the Llama block, and grouped-query attention, beside the CPU's.

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/gpu/on_gpu.h"
#include "worker/kernels/llama.h"
#include "worker/models/attention.h"

namespace muster::worker {
namespace {

using namespace testing;

class LlamaOnGpu : public OnGpu {
 protected:
  at::ScalarType wide() const { return GetParam().dtype == at::kDouble ? at::kDouble : at::kFloat; }
};

TEST_P(LlamaOnGpu, ResidualRmsNorm) {
  for (const int64_t width : {4, 64, 768, 1600, 2052, 4096, 8192, 16384}) {
    for (const bool full : {false, true}) {
      const int64_t rows = width < 1000 ? 1200 : 37;  // more rows than blocks, and fewer
      const at::Tensor r = random({rows, width}), x = full ? random({rows, width}) : at::Tensor(), w = random({width});
      const auto cpu = kernels::residual_rms_norm(r, x, w, 1e-3),
                 on_gpu = kernels::residual_rms_norm(gpu(r), gpu(x), gpu(w), 1e-3);
      expect_close(cpu.sum, on_gpu.sum, "sum");
      expect_close(cpu.normed, on_gpu.normed, "normed");
      const at::Tensor g = random({rows, width}), past = full ? random({rows, width}) : at::Tensor(),
                       gw = at::full({width}, 0.5, wide()), gw2 = gpu(gw).clone();
      const at::Tensor dx = kernels::residual_rms_norm_backward(g, past, cpu.sum, cpu.rstd, w, gw);
      const at::Tensor dx2 = kernels::residual_rms_norm_backward(gpu(g), gpu(past), gpu(cpu.sum), gpu(cpu.rstd), gpu(w), gw2);
      expect_close(dx, dx2, "dx");
      expect_close(gw, gw2, "grad_weight");
      EXPECT_TRUE(kernels::residual_rms_norm_backward(gpu(g), gpu(past), gpu(cpu.sum), gpu(cpu.rstd), gpu(w), {}).equal(dx2))
          << "repeatable";
    }
  }
}

TEST_P(LlamaOnGpu, Swiglu) {
  for (const int64_t width : {1, 7, 64, 2048}) {
    const at::Tensor x = random({129, 2 * width}).mul(3), g = random({129, width});
    expect_close(kernels::swiglu(x), kernels::swiglu(gpu(x)), "swiglu");
    expect_close(kernels::swiglu_backward(g, x), kernels::swiglu_backward(gpu(g), gpu(x)), "swiglu_backward");
  }
}

TEST_P(LlamaOnGpu, Rotary) {
  for (const int64_t width : {2, 6, 8, 64, 128}) {
    for (const bool interleaved : {false, true}) {
      for (const bool back : {false, true}) {
        const kernels::Rotary how{6, interleaved, back};
        const at::Tensor table = kernels::rotary_table(50, width, 10000, at::TensorOptions().dtype(wide())),
                         x = random({150, 8 * width});
        expect_close(kernels::rotary(x, table, how), kernels::rotary(gpu(x), gpu(table), how), "rotary");
      }
    }
  }
}

TEST_P(LlamaOnGpu, GroupedAttention) {
  for (const int64_t groups : {1, 2, 4}) {
    at::Tensor cpu = random({2 * 65, (4 + 2 * groups) * 32}), on_gpu = gpu(cpu);
    const at::Tensor g = random({2 * 65, 4 * 32});
    cpu.set_requires_grad(true);
    on_gpu.set_requires_grad(true);
    const at::Tensor a = ops::causal_attention(cpu, 2, {4, groups}, {}), b = ops::causal_attention(on_gpu, 2, {4, groups}, {});
    a.backward(g);
    b.backward(gpu(g));
    // The fused kernels round inside: probabilities to 16 bits, factors to three TF32 parts.
    const double slack = GetParam().dtype == at::kFloat ? 20 : 4;
    expect_close(a.detach(), b.detach(), "attention", slack * a.detach().norm().item<double>());
    expect_close(cpu.grad(), on_gpu.grad(), "gradient", slack * cpu.grad().norm().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LlamaOnGpu, all_dtypes(), dtype_name);

}  // namespace
}  // namespace muster::worker
