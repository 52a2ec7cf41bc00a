#pragma once
// A test for each float dtype, with the error that its rounding allows.

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace muster::worker::testing {

inline double relative_error(const at::Tensor& found, const at::Tensor& wanted) {
  const at::Tensor a = found.to(at::kDouble), b = wanted.to(at::kDouble);
  const double error = a.sub(b).norm().item<double>(), size = b.norm().item<double>();
  return size > 0 ? error / size : error;
}

struct Case {
  at::ScalarType dtype;
  double tolerance;
};

class ByDtype : public ::testing::TestWithParam<Case> {
 protected:
  at::Tensor random(at::IntArrayRef shape) const { return at::randn(shape, at::kDouble).to(GetParam().dtype); }
  // NaN fails too.
  void expect_close(const at::Tensor& found, const at::Tensor& wanted, const char* what) const {
    EXPECT_LE(relative_error(found, wanted), GetParam().tolerance) << what;
  }
  at::ScalarType wide() const { return GetParam().dtype == at::kDouble ? at::kDouble : at::kFloat; }
};

inline auto all_dtypes() {
  return ::testing::Values(Case{at::kDouble, 1e-12}, Case{at::kFloat, 2e-6}, Case{at::kBFloat16, 1e-2}, Case{at::kHalf, 2e-3});
}
inline std::string dtype_name(const ::testing::TestParamInfo<Case>& info) { return toString(info.param.dtype); }

}  // namespace muster::worker::testing
