#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "comm/collective/backends.h"

namespace muster::comm {
namespace {

at::Tensor threes(int64_t count) { return at::full({count}, 3.0, at::kFloat); }

class Loopback : public testing::Test {
 protected:
  std::unique_ptr<Communicator> comm = make_loopback_communicator();
};

TEST_F(Loopback, IsAGroupOfOne) {
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->backend(), "loopback");
}

TEST_F(Loopback, CollectivesKeepOrCopy) {
  at::Tensor tensor = threes(5), out = at::zeros({5}), gathered = at::zeros({5});
  comm->all_reduce(tensor, ReduceOp::kMax)->wait();
  comm->broadcast(tensor, 0)->wait();
  comm->barrier()->wait();
  EXPECT_TRUE(at::equal(tensor, threes(5)));
  const WorkPtr work = comm->reduce_scatter(out, tensor);
  EXPECT_TRUE(work->done());
  work->synchronize(Deadline::after(milliseconds(0)));
  EXPECT_TRUE(at::equal(out, tensor));
  comm->all_gather(gathered, tensor)->wait();
  EXPECT_TRUE(at::equal(gathered, tensor));
  comm->all_gather(tensor, tensor)->wait();  // in place
}

TEST_F(Loopback, ChecksLikeTheOthers) {
  EXPECT_THROW((void)comm->all_reduce(at::zeros({2}, at::kByte)), CheckError);
  EXPECT_THROW((void)comm->reduce_scatter(threes(2), threes(3)), CheckError);
  EXPECT_THROW((void)comm->broadcast(threes(2), 1), CheckError);
  EXPECT_THROW((void)comm->send(threes(2), 0), CheckError);
  EXPECT_THROW((void)comm->recv(threes(2), 1), CheckError);
}

TEST_F(Loopback, CountsCallsAndBytes) {
  comm->group_begin();
  (void)comm->all_reduce(threes(5));
  (void)comm->all_reduce(threes(2));
  comm->group_end()->wait();
  const auto kind = static_cast<size_t>(OpKind::kAllReduce);
  EXPECT_EQ(comm->counters().calls[kind], 2);
  EXPECT_EQ(comm->counters().bytes[kind], 28);
  EXPECT_EQ(comm->counters().calls[static_cast<size_t>(OpKind::kBarrier)], 0);
}

TEST_F(Loopback, AbortEndsLaterOperations) {
  comm->abort("enough");
  comm->abort("second");
  try {
    comm->barrier()->wait();
    FAIL() << "an aborted communicator works on";
  } catch (const PeerError& error) {
    EXPECT_STREQ(error.what(), "barrier #0: aborted: enough");
  }
}

}  // namespace
}  // namespace muster::comm
