// The nccl backend on a real GPU, world size 1 (more ranks: scripts/gpu-check trains with two).

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "comm/collective/backends.h"

namespace muster::comm {
namespace {

class NcclOnGpu : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "needs a GPU";
    at::globalContext().lazyInitDevice(at::kCUDA);
    rendezvous_ = make_single_rendezvous();
    communicator_ = make_nccl_communicator(*rendezvous_, 0, {"test", std::chrono::seconds(60)});
  }
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Communicator> communicator_;
};

TEST_P(NcclOnGpu, EveryOperation) {
  const auto options = at::TensorOptions().dtype(GetParam()).device(at::kCUDA);
  const at::Tensor x = at::ones({1000}, options).mul_(3), y = at::zeros({1000}, options);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  communicator_->all_reduce(x)->wait();
  communicator_->broadcast(x, 0)->wait();
  communicator_->all_gather(y, x)->wait();
  EXPECT_TRUE(y.equal(x));
  y.zero_();
  communicator_->reduce_scatter(y, x)->synchronize(deadline);
  EXPECT_TRUE(y.equal(x));
  EXPECT_EQ(x.to(at::kDouble).sum().item<double>(), 3000);
  communicator_->barrier()->synchronize(deadline);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NcclOnGpu, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace muster::comm
