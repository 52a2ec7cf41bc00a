#pragma once
// CUDA kernels beside the CPU ones, for each float dtype.

#include <string>

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "worker/kernels/cuda_register.h"

namespace muster::worker::testing {

struct Case {
  at::ScalarType dtype;
  double tolerance;  // relative, of the norm
};

class OnGpu : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "needs a GPU";
    static const bool once = [] {
      return at::globalContext().lazyInitDevice(at::kCUDA), kernels::register_cuda_kernels(), true;
    }();
    ASSERT_TRUE(once);
  }
  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape, at::kDouble).to(GetParam().dtype); }
  static at::Tensor gpu(const at::Tensor& t) { return t.defined() ? t.to(at::kCUDA) : t; }
  // scale: of what cancels in the result, where that is larger than the result.
  void expect_close(const at::Tensor& cpu, const at::Tensor& on_gpu, const char* what, double scale = 0) const {
    const at::Tensor a = cpu.to(at::kDouble), b = on_gpu.to(at::kCPU).to(at::kDouble);
    ASSERT_EQ(a.sizes(), b.sizes());
    const double error = a.sub(b).norm().item<double>(), size = std::max(scale, a.norm().item<double>());
    EXPECT_LE(error, GetParam().tolerance * (size + 1e-30)) << what;  // false for NaN
  }
};

inline auto all_dtypes() {
  return ::testing::Values(Case{at::kDouble, 1e-12}, Case{at::kFloat, 2e-6}, Case{at::kBFloat16, 8e-3}, Case{at::kHalf, 1e-3});
}
inline std::string dtype_name(const ::testing::TestParamInfo<Case>& info) { return toString(info.param.dtype); }

}  // namespace muster::worker::testing
