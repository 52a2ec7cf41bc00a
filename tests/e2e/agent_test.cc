// `muster agent` under launchers that only set an environment.

#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/e2e/job.h"

namespace muster::e2e {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Listener {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    listen(fd, 1);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(fd); }
};

void as_torchrun(Job& job, int rank, int ranks, int port) {
  job.set("RANK", std::to_string(rank));
  job.set("WORLD_SIZE", std::to_string(ranks));
  job.set("LOCAL_RANK", std::to_string(rank));
  job.set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  job.set("MASTER_ADDR", "127.0.0.1");
  job.set("MASTER_PORT", std::to_string(port));
}

void as_slurm(Job& job, int rank, int ranks, int port) {
  job.set("SLURM_PROCID", std::to_string(rank));
  job.set("SLURM_NTASKS", std::to_string(ranks));
  job.set("SLURM_LOCALID", std::to_string(rank));
  job.set("SLURM_NODEID", "0");
  job.set("SLURM_STEP_TASKS_PER_NODE", std::to_string(ranks));
  job.set("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1");
  job.set("MUSTER_MASTER_PORT", std::to_string(port));
}

class Environments : public testing::TestWithParam<std::string> {
 protected:
  static void prepare(Job& job, int rank, int ranks, int port) {
    GetParam() == "slurm" ? as_slurm(job, rank, ranks, port) : as_torchrun(job, rank, ranks, port);
  }
};

TEST_P(Environments, RanksMeet) {
  const int port = Listener().port;
  Job jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    prepare(jobs[rank], rank, 2, port);
    jobs[rank].begin({kMuster, "agent", "--run-dir", jobs[0].run_folder()});
  }
  for (Job& job : jobs) EXPECT_EQ(job.end(), 0) << job.err();
  EXPECT_THAT(jobs[0].err(), HasSubstr("rank 0 met 2 ranks"));
}

TEST_P(Environments, OneRankFails) {
  const int port = Listener().port;
  Job jobs[2];
  for (int rank = 0; rank < 2; ++rank) {
    prepare(jobs[rank], rank, 2, port);
    jobs[rank].set("FAKE_MODE", "exit:9");
    jobs[rank].set("FAKE_RANK", "1");
    jobs[rank].begin({kMuster, "agent", "--run-dir", jobs[0].run_folder()});
  }
  for (Job& job : jobs) EXPECT_EQ(job.end(), 9) << job.err();
  EXPECT_THAT(final_lines(jobs[0].err()), ElementsAre(HasSubstr("rank 1 on " + host_name() + ": worker exited with code 9")));
  EXPECT_THAT(final_lines(jobs[1].err()), IsEmpty());
  for (Job& job : jobs) EXPECT_THAT(job.left(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, Environments, testing::Values("torchrun", "slurm"), [](const auto& info) { return info.param; });

TEST(Agent, ATakenPort) {
  const Listener taken;
  Job job;
  as_torchrun(job, 0, 2, taken.port);
  EXPECT_EQ(job.run({kMuster, "agent"}), 2);
  EXPECT_THAT(final_lines(job.err()),
              ElementsAre(HasSubstr(fmt::format("MUSTER_MASTER_PORT: cannot listen on port {}", taken.port))));
}

TEST(Agent, ARankThatNeverStarts) {
  Job job;
  as_torchrun(job, 0, 2, Listener().port);
  EXPECT_EQ(job.run({kMuster, "agent", "--start-timeout-s", "1"}), 3);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("did not arrive before the deadline: rank 1")));
}

TEST(Agent, AContradictoryEnvironment) {
  Job job;
  as_torchrun(job, 2, 2, 4000);
  EXPECT_EQ(job.run({kMuster, "agent"}), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("RANK: found 2, wanted less than WORLD_SIZE (2)")));
}

TEST(Agent, Alone) {
  Job job;
  EXPECT_EQ(job.run({kMuster, "agent", "--run-dir", job.run_folder()}), 0) << job.err();
  EXPECT_EQ(job.out(), "rank 0 done\n");
  EXPECT_THAT(job.left(), IsEmpty());
}

}  // namespace
}  // namespace muster::e2e
