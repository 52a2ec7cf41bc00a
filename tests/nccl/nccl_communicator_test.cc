// The nccl communicator's own logic, over a fake NCCL and a fake GPU (tests/gpu has the real ones).

#include "comm/collective/nccl/nccl_communicator.h"

#include <thread>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/collective/nccl/sharing.h"
#include "tests/fakes/fake_nccl.h"

namespace muster::comm::nccl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  // A communicator that believes to be rank 0 of 2; the fake NCCL needs no peer, the exchange does.
  std::unique_ptr<Communicator> make(milliseconds timeout = std::chrono::seconds(30)) {
    rendezvous_ = make_thread_rendezvous(2);
    std::exception_ptr peer_failure;
    std::thread peer([&] {
      try {
        for (const char* mine : {"gpu b", ""}) (void)rendezvous_[1]->exchange(mine, Deadline::after(std::chrono::seconds(10)));
      } catch (...) {
        peer_failure = std::current_exception();
      }
    });
    std::unique_ptr<Communicator> made;
    std::exception_ptr failure;
    try {
      made = make_communicator(*rendezvous_[0], nccl_, std::make_unique<FakeDevice>(log_, "gpu a", events_pass_), {"test", timeout});
    } catch (...) {
      failure = std::current_exception();
    }
    peer.join();
    if (failure) std::rethrow_exception(failure);
    return made;
  }

  CallLog log_;
  FakeNccl nccl_{log_};
  std::atomic<bool> events_pass_{true};
  std::vector<std::unique_ptr<Rendezvous>> rendezvous_;
  at::Tensor data_ = at::ones({6});
};

TEST_F(NcclCommunicatorTest, StartsWithoutBlockingFromTheSharedIdAndEndsInOrder) {
  make();
  EXPECT_THAT(log_.taken(), ElementsAre("init 0/2 id 42", "finalize", "destroy"));
}

TEST_F(NcclCommunicatorTest, AnOperationRunsBetweenTwoEvents) {
  const auto c = make();
  log_.taken();
  const WorkPtr work = c->all_reduce(data_);
  EXPECT_THAT(log_.taken(), ElementsAre("communication follows current", "all_reduce 6 type 7 op 0", "record"));
  work->wait();
  EXPECT_THAT(log_.taken(), ElementsAre("current follows"));
  EXPECT_TRUE(work->done());
}

TEST_F(NcclCommunicatorTest, EveryOperationReachesNccl) {
  const auto c = make();
  log_.taken();
  const at::Tensor half = data_.narrow(0, 0, 3);
  for (const auto& work : {c->all_reduce(data_.to(at::kBFloat16), ReduceOp::kMax), c->reduce_scatter(half, data_), c->all_gather(data_, half), c->broadcast(data_, 1),
                           c->send(data_.to(at::kDouble), 1), c->recv(data_.to(at::kLong), 1), c->barrier()}) {
    work->synchronize(Deadline::after(std::chrono::seconds(5)));
  }
  std::vector<std::string> calls;
  for (const auto& line : log_.taken()) {
    if (line != "record" && line != "communication follows current") calls.push_back(line);
  }
  EXPECT_THAT(calls, ElementsAre("all_reduce 6 type 9 op 2", "reduce_scatter 3 type 7 op 0", "all_gather 3 type 7", "broadcast 6 type 7 root 1",
                                 "send 6 type 8 to 1", "recv 6 type 4 from 1", "all_reduce 1 type 7 op 0"));
  EXPECT_EQ(c->counters().calls[static_cast<size_t>(OpKind::kAllGather)], 1);
  EXPECT_EQ(c->counters().bytes[static_cast<size_t>(OpKind::kBroadcast)], 24);
}

TEST_F(NcclCommunicatorTest, AGroupIsOneLaunch) {
  const auto c = make();
  log_.taken();
  c->group_begin();
  const WorkPtr inside = c->send(data_, 1);
  EXPECT_THROW(inside->wait(), CheckError);
  (void)c->recv(data_, 1);
  const WorkPtr all = c->group_end();
  EXPECT_THAT(log_.taken(), ElementsAre("communication follows current", "group start", "send 6 type 7 to 1", "recv 6 type 7 from 1", "group end", "record"));
  inside->wait();
  all->wait();
}

TEST_F(NcclCommunicatorTest, TensorsLiveUntilTheirEventHasPassed) {
  events_pass_ = false;
  const auto c = make();
  at::Tensor tensor = at::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
  (void)c->all_reduce(std::move(tensor));
  tensor = at::Tensor();
  std::this_thread::sleep_for(milliseconds(150));
  EXPECT_FALSE(weak.expired());
  events_pass_ = true;
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (!weak.expired() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(weak.expired());
}

TEST_F(NcclCommunicatorTest, AbortEndsPresentAndLaterOperations) {
  events_pass_ = false;
  const auto c = make();
  const WorkPtr work = c->all_reduce(data_);
  log_.taken();
  c->abort("test");
  c->abort("again");
  EXPECT_THAT(log_.taken(), ElementsAre("abort"));
  EXPECT_TRUE(work->done());
  EXPECT_THROW(work->wait(), PeerError);
  EXPECT_THROW((void)c->barrier(), PeerError);
}

TEST_F(NcclCommunicatorTest, AnErrorOfNcclBecomesAPeerErrorOfTheRunningOperation) {
  events_pass_ = false;
  const auto c = make();
  const WorkPtr work = c->broadcast(data_, 0);
  nccl_.async_error = ncclRemoteError;
  try {
    work->synchronize(Deadline::after(std::chrono::seconds(20)));
    FAIL() << "no error";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("broadcast #0"));
    EXPECT_THAT(e.what(), HasSubstr("fake error 6"));
  }
}

TEST_F(NcclCommunicatorTest, AnOperationThatIsRefusedEndsTheCommunicator) {
  const auto c = make();
  nccl_.call_result = ncclInvalidUsage;
  EXPECT_THROW((void)c->all_reduce(data_), PeerError);
  nccl_.call_result = ncclSuccess;
  EXPECT_THROW((void)c->all_reduce(data_), PeerError);
}

TEST_F(NcclCommunicatorTest, AnOverdueOperationIsEndedByTheWatchdog) {
  events_pass_ = false;
  const auto c = make(milliseconds(300));
  const WorkPtr work = c->all_reduce(data_);
  try {
    work->synchronize(Deadline::after(std::chrono::seconds(20)));
    FAIL() << "no error";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("all_reduce #0: not done within"));
  }
}

TEST_F(NcclCommunicatorTest, SynchronizeHasItsOwnDeadline) {
  events_pass_ = false;
  const auto c = make();
  EXPECT_THROW(c->all_reduce(data_)->synchronize(Deadline::after(milliseconds(50))), PeerError);
}

TEST_F(NcclCommunicatorTest, StartThatFailsOrHangsIsNamedAndAborted) {
  nccl_.init_result = ncclSystemError;
  EXPECT_THROW(make(), PeerError);
  nccl_.init_result = ncclInProgress;
  nccl_.async_error = ncclInProgress;
  try {
    make(milliseconds(300));
    FAIL() << "no error";
  } catch (const PeerError& e) {
    EXPECT_THAT(e.what(), HasSubstr("not all ranks reached the start in time"));
  }
  EXPECT_THAT(log_.taken(), ::testing::Contains("abort"));
}

TEST(Sharing, TwoRanksOnOneGpuNeedANewNcclThatIsToldSo) {
  check_sharing({"a", "b"}, 22000, false);
  check_sharing({"a", "a"}, 23203, true);
  for (const auto& [version, enabled] : std::vector<std::pair<int, bool>>{{23203, false}, {22809, true}, {22809, false}}) {
    try {
      check_sharing({"a", "b", "a"}, version, enabled);
      FAIL() << "no error";
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), HasSubstr("ranks 0 and 2 both use a"));
      EXPECT_THAT(e.what(), HasSubstr("found " + version_text(version)));
    }
  }
}

TEST(Version, AnotherMajorVersionIsRefused) {
  EXPECT_THROW(check_version(30100, 22809, "x"), InputError);
  check_version(22700, 22809, "x");
  EXPECT_EQ(version_text(23203), "2.32.3");
}

}  // namespace
}  // namespace muster::comm::nccl
