// What goes wrong between ranks ends with the right error on every rank, and never hangs.

#include <chrono>
#include <csignal>
#include <future>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "tests/collective/ranks.h"

namespace muster::comm {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr milliseconds kShort{700}, kLong{60'000};

class HostFailures : public testing::TestWithParam<const char*> {
 protected:
  ForcedTransport transport_{GetParam()};
  static std::vector<std::string> run(int size, milliseconds timeout, const RankBody& body) {
    return run_ranks(size, {"test", timeout}, body);
  }
};

at::Tensor floats(int64_t count) { return at::ones({count}, at::kFloat); }

TEST_P(HostFailures, AnAbsentRankIsNamed) {
  std::promise<void> over;
  std::shared_future<void> all_failed = over.get_future().share();
  std::atomic<int> failed{0};
  const auto errors = run(4, kShort, [&](Communicator& comm) {
    comm.all_reduce(floats(10))->wait();
    if (comm.rank() == 2) {
      all_failed.wait_for(kLong);
      return;
    }
    try {
      comm.all_reduce(floats(100'000))->wait();
    } catch (...) {
      if (++failed == 3) over.set_value();
      throw;
    }
  });
  for (int rank : {0, 1, 3}) {
    EXPECT_THAT(errors[rank], AllOf(HasSubstr("all_reduce #1"), HasSubstr("rank 2"), HasSubstr("did not arrive within 0.7 s")));
    EXPECT_THAT(errors[rank], testing::Not(HasSubstr("rank 2, "))) << "only rank 2 is absent";
  }
}

TEST_P(HostFailures, AbsentRanksAreAllNamed) {
  std::promise<void> over;
  std::shared_future<void> failed = over.get_future().share();
  const auto errors = run(4, kShort, [&](Communicator& comm) {
    if (comm.rank() != 1) {
      failed.wait_for(kLong);
      return;
    }
    try {
      comm.barrier()->wait();
    } catch (...) {
      over.set_value();
      throw;
    }
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("barrier #0"), HasSubstr("rank 0, 2, 3")));
}

TEST_P(HostFailures, AReceiveWithoutSendEnds) {
  const auto errors = run(2, kShort, [&](Communicator& comm) {
    if (comm.rank() == 0) comm.recv(floats(4), 1)->wait();
    if (comm.rank() == 1) std::this_thread::sleep_for(2 * kShort);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("recv #0"), HasSubstr("rank 1"), HasSubstr("no matching call")));
}

// One rank differs in what it calls; every rank must say so.
void expect_mismatch(const std::vector<std::string>& errors, const std::string& one, const std::string& other) {
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("mismatch"), HasSubstr(one), HasSubstr(other))));
}

using Issue = std::function<WorkPtr(Communicator&)>;

std::vector<std::string> one_differs(int size, const Issue& most, const Issue& last) {
  return run_ranks(size, {"test", kLong}, [&](Communicator& comm) {
    comm.barrier()->wait();
    (comm.rank() == comm.size() - 1 ? last : most)(comm)->wait();
  });
}

WorkPtr sum(Communicator& comm) { return comm.all_reduce(floats(1000)); }

TEST_P(HostFailures, MismatchOfCount) {
  const auto errors = one_differs(3, sum, [](Communicator& comm) { return comm.all_reduce(floats(999'999)); });
  expect_mismatch(errors, "all_reduce(sum, float32 x 1000)", "all_reduce(sum, float32 x 999999)");
}

TEST_P(HostFailures, MismatchOfSmallCount) {
  const auto errors = one_differs(3, sum, [](Communicator& comm) { return comm.all_reduce(floats(1001)); });
  expect_mismatch(errors, "float32 x 1000", "float32 x 1001");
}

TEST_P(HostFailures, MismatchOfType) {
  const auto errors = one_differs(3, sum, [](Communicator& comm) { return comm.all_reduce(floats(1000).to(at::kDouble)); });
  expect_mismatch(errors, "float32 x 1000", "float64 x 1000");
}

TEST_P(HostFailures, MismatchOfReduction) {
  const auto errors = one_differs(2, sum, [](Communicator& comm) { return comm.all_reduce(floats(1000), ReduceOp::kMax); });
  expect_mismatch(errors, "all_reduce(sum", "all_reduce(max");
}

TEST_P(HostFailures, MismatchOfOperation) {
  const auto errors = one_differs(4, sum, [](Communicator& comm) { return comm.barrier(); });
  expect_mismatch(errors, "all_reduce(sum", "barrier()");
}

TEST_P(HostFailures, MismatchOfRoot) {
  const auto errors = one_differs(
      3, [](Communicator& comm) { return comm.broadcast(floats(10), 0); },
      [](Communicator& comm) { return comm.broadcast(floats(10), 2); });
  expect_mismatch(errors, "root 0", "root 2");
}

TEST_P(HostFailures, MismatchOfMessage) {
  const auto errors = run(2, kLong, [](Communicator& comm) {
    if (comm.rank() == 0) comm.send(floats(10), 1)->wait();
    if (comm.rank() == 1) comm.recv(floats(11), 0)->wait();
    comm.barrier()->wait();
  });
  expect_mismatch(errors, "float32 x 10)", "float32 x 11)");
}

TEST_P(HostFailures, AbortEndsAllRanksAtOnce) {
  std::atomic<int> ready{0};
  const auto errors = run(4, kLong, [&](Communicator& comm) {
    comm.barrier()->wait();
    for (++ready; ready < 4;) std::this_thread::yield();  // an abort may overtake a barrier
    const WorkPtr first = comm.rank() == 3 ? nullptr : comm.all_reduce(floats(100'000));
    if (comm.rank() == 3) comm.abort("the watchdog says so");
    const WorkPtr second = comm.barrier();
    EXPECT_THROW((first ? first : second)->wait(), PeerError);
    EXPECT_TRUE((first ? first : second)->done());
    second->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("aborted: the watchdog says so")));
  EXPECT_THAT(errors[0], HasSubstr("barrier #2: rank 3: aborted"));
}

TEST_P(HostFailures, AbortFromAnotherThreadEndsAWait) {
  const auto errors = run(3, kLong, [](Communicator& comm) {
    comm.barrier()->wait();
    if (comm.rank() == 1) {
      std::thread watchdog([&] {
        std::this_thread::sleep_for(50ms);
        comm.abort("from a thread");
        comm.abort("again");
      });
      try {
        comm.recv(floats(3), 0)->wait();
      } catch (...) {
        watchdog.join();
        throw;
      }
      watchdog.join();
    } else {
      comm.recv(floats(3), 1)->wait();
    }
  });
  EXPECT_THAT(errors, Each(HasSubstr("aborted: from a thread")));
}

TEST_P(HostFailures, AShorterDeadlineBreaksTheCommunicator) {
  const auto errors = run(2, kLong, [](Communicator& comm) {
    if (comm.rank() == 1) {  // comes too late
      std::this_thread::sleep_for(400ms);
      comm.barrier()->wait();
      return;
    }
    const WorkPtr work = comm.barrier();
    std::this_thread::sleep_for(50ms);  // so that the progress thread, not this one, runs it
    EXPECT_FALSE(work->done());
    EXPECT_THROW(work->synchronize(Deadline::after(100ms)), PeerError);
    comm.all_reduce(floats(2))->wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("all_reduce #1: rank 1"), HasSubstr("did not arrive")));
  EXPECT_NE(errors[1], "");
}

TEST_P(HostFailures, ARankThatHasLeftIsNamed) {
  const auto errors = run(3, kLong, [](Communicator& comm) {
    comm.barrier()->wait();
    if (comm.rank() != 1) comm.all_reduce(floats(8))->wait();
  });
  EXPECT_EQ(errors[1], "");
  for (int rank : {0, 2}) EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank 1"), HasSubstr("has closed its communicator")));
}

TEST_P(HostFailures, WorkOutlivesItsCommunicator) {
  auto meetings = make_thread_rendezvous(2);
  std::promise<void> asked;
  std::string told;
  std::thread other([&] {
    const auto communicator = make_host_communicator(*meetings[1], {"test", kLong});
    try {
      communicator->barrier()->wait();
    } catch (const PeerError& error) {
      told = error.what();
    }
    asked.get_future().wait_for(kLong);
  });
  WorkPtr unfinished;
  {
    auto communicator = make_host_communicator(*meetings[0], {"test", kLong});
    unfinished = communicator->recv(floats(1), 1);
  }
  EXPECT_TRUE(unfinished->done());
  try {
    unfinished->wait();
    ADD_FAILURE() << "received from nobody";
  } catch (const PeerError& error) {
    EXPECT_STREQ(error.what(), "recv #0: rank 0: destroyed with 1 operations unfinished");
  }
  asked.set_value();
  other.join();
  EXPECT_THAT(told, HasSubstr("rank 0: destroyed with 1 operations unfinished"));
}

TEST_P(HostFailures, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  const auto errors = run(2, kLong, [](Communicator& comm) {
    EXPECT_THROW((void)comm.all_reduce(at::zeros({4}, at::kByte)), CheckError);
    EXPECT_THROW((void)comm.all_reduce(at::zeros({4}, at::kInt)), CheckError);
    EXPECT_THROW((void)comm.all_reduce(at::zeros({4, 4}, at::kFloat).t()), CheckError);
    EXPECT_THROW((void)comm.all_gather(floats(5), floats(2)), CheckError);
    EXPECT_THROW((void)comm.reduce_scatter(floats(2), floats(5)), CheckError);
    EXPECT_THROW((void)comm.reduce_scatter(floats(2), at::zeros({4}, at::kDouble)), CheckError);
    EXPECT_THROW((void)comm.broadcast(floats(2), 2), CheckError);
    EXPECT_THROW((void)comm.send(floats(2), comm.rank()), CheckError);
    EXPECT_THROW((void)comm.recv(floats(2), -1), CheckError);
    EXPECT_THROW((void)comm.group_end(), CheckError);
    comm.all_reduce(floats(5))->wait();
  });
  EXPECT_EQ(all_errors(errors), "");
}

// What was sent arrives, even when the sender has gone before the receiver asks.
TEST_P(HostFailures, AMessageOutlivesItsSender) {
  const auto errors = run(2, kLong, [](Communicator& comm) {
    at::Tensor tensor = at::full({30'000}, comm.rank() + 1.0, at::kFloat);
    if (comm.rank() == 0) return comm.send(tensor, 1)->wait();
    std::this_thread::sleep_for(1300ms);  // longer than a sender waits for goodbyes
    comm.recv(tensor, 0)->wait();
    EXPECT_EQ(tensor.data_ptr<float>()[29'999], 1.0f);
  });
  EXPECT_EQ(all_errors(errors), "");
}

INSTANTIATE_TEST_SUITE_P(Transport, HostFailures, testing::Values("shm", "inproc", "ipc", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HostTransport, UnknownOrDifferentIsRefused) {
  {
    ForcedTransport transport("pigeon");
    EXPECT_THAT(run_ranks(2, [](Communicator&) {}), Each(AllOf(HasSubstr("'pigeon'"), HasSubstr("wanted shm"))));
  }
  ForcedTransport transport("tcp");
  setenv("MUSTER_HOST_ADDRESS", "not.an.address", 1);
  EXPECT_THAT(run_ranks(1, [](Communicator&) {}), Each(testing::IsEmpty()));  // nobody to listen to
  const auto errors = run_ranks(2, {"test", kShort}, [](Communicator&) {});
  unsetenv("MUSTER_HOST_ADDRESS");
  EXPECT_THAT(errors[0], AllOf(HasSubstr("MUSTER_HOST_ADDRESS"), HasSubstr("'not.an.address'")));
}

// Makes shared memory of more than a megabyte impossible while it lives.
class NoSharedMemory {
 public:
  NoSharedMemory() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{1 << 20, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~NoSharedMemory() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST(HostTransport, WorksWithoutSharedMemory) {
  const NoSharedMemory none;
  const RankBody reduce = [](Communicator& comm) {
    at::Tensor tensor = floats(1000);
    comm.all_reduce(tensor)->wait();
    EXPECT_EQ(tensor.data_ptr<float>()[999], 3.0f);
  };
  EXPECT_EQ(all_errors(run_ranks(3, reduce)), "");
  ForcedTransport transport("shm");
  EXPECT_THAT(run_ranks(3, reduce), Each(AllOf(HasSubstr("MUSTER_HOST_TRANSPORT=shm"), HasSubstr("shared memory"))));
}

}  // namespace
}  // namespace muster::comm
