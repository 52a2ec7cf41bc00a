#include "worker/kernels/matmul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "comm/base/error.h"
#include "worker/kernels/cpu_sgemm.h"

namespace muster::worker::kernels {
namespace {

bool ours(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && a.stride(1) == 1 && b.stride(1) == 1 &&
         sgemm_is_better();
}

const float* data(const at::Tensor& t) { return t.const_data_ptr<float>(); }

}  // namespace

at::Tensor matmul_nt(const at::Tensor& a, const at::Tensor& b) {
  if (!ours(a, b)) return at::mm(a, b.t());
  MUSTER_CHECK_EQ(a.size(1), b.size(1));
  at::Tensor c = at::empty({a.size(0), b.size(0)}, a.options());
  sgemm({a.size(0), b.size(0), a.size(1), data(a), a.stride(0), false, data(b), b.stride(0), true, c.mutable_data_ptr<float>(), c.size(1), false});
  return c;
}

at::Tensor matmul_nn(const at::Tensor& a, const at::Tensor& b) {
  if (!ours(a, b)) return at::mm(a, b);
  MUSTER_CHECK_EQ(a.size(1), b.size(0));
  at::Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  sgemm({a.size(0), b.size(1), a.size(1), data(a), a.stride(0), false, data(b), b.stride(0), false, c.mutable_data_ptr<float>(), c.size(1), false});
  return c;
}

void matmul_tn_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  MUSTER_CHECK(out.is_contiguous());
  MUSTER_CHECK_EQ(a.size(0), b.size(0));
  if (ours(a, b)) {
    sgemm({a.size(1), b.size(1), a.size(0), data(a), a.stride(0), true, data(b), b.stride(0), false, out.mutable_data_ptr<float>(), out.size(1), accumulate});
  } else if (accumulate) {
    out.addmm_(a.t(), b);
  } else {
    at::mm_out(out, a.t(), b);
  }
}

}  // namespace muster::worker::kernels
