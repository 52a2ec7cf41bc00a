#include "launcher/launch_plan.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <fmt/ranges.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

Machine machine(int open_mpi_major) {
  Machine m;
  m.host = "here";
  m.cores = 8;
  m.ssh = true;
  m.agent = "/bin/agent";
  m.free_port = 4567;
  m.token = "token";
  m.run_folder = "runs/today";
  if (open_mpi_major > 0) {
    m.mpirun = "/bin/mpirun";
    m.open_mpi_major = open_mpi_major;
    m.mpi_version = fmt::format("mpirun (Open MPI) {}.0.1", open_mpi_major);
  }
  return m;
}

LaunchPlan plan(const std::vector<std::string>& words, const Machine& m) { return make_plan(parse_launch_options(words), "", m); }

std::string command(const LaunchPlan& p) { return fmt::format("{}", fmt::join(p.processes.at(0).argv, " ")); }

std::string refusal(const std::vector<std::string>& words, const Machine& m) {
  try {
    plan(words, m);
    return "accepted";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(LaunchPlan, OpenMpi4) {
  const auto p = plan({"run.yaml", "-n", "4", "--lr", "0.1"}, machine(4));
  EXPECT_EQ(p.engine, Engine::kMpirun);
  EXPECT_EQ(command(p), "/bin/mpirun -q -np 4 --bind-to none --oversubscribe /bin/agent run.yaml --lr 0.1 --run-dir runs/today");
  EXPECT_THAT(p.summary, HasSubstr("-np 4 --bind-to none --oversubscribe"));
  EXPECT_EQ(p.ranks.size(), 4u);
  EXPECT_EQ(p.ranks[3].local_rank, 3);
}

TEST(LaunchPlan, OpenMpi5) {
  EXPECT_EQ(command(plan({"-n", "4"}, machine(5))),
            "/bin/mpirun -q -np 4 --bind-to none --map-by :OVERSUBSCRIBE /bin/agent --run-dir runs/today");
}

TEST(LaunchPlan, RootIsAllowed) {
  auto m = machine(4);
  EXPECT_THAT(plan({"-n", "2"}, m).processes[0].argv, Not(Contains("--allow-run-as-root")));
  m.root = true;
  EXPECT_THAT(plan({"-n", "2"}, m).processes[0].argv, Contains("--allow-run-as-root"));
}

TEST(LaunchPlan, AMachineWithoutSsh) {
  auto m = machine(4);
  m.ssh = false;
  EXPECT_THAT(command(plan({"-n", "2"}, m)), HasSubstr("--mca plm isolated"));
  EXPECT_THAT(plan({"-n", "2"}, m).summary, HasSubstr("no ssh here"));
  m = machine(5);
  m.ssh = false;
  EXPECT_THAT(command(plan({"-n", "2"}, m)), HasSubstr("--prtemca plm_ssh_agent /bin/true"));
  EXPECT_THAT(command(plan({"-n", "2", "--hosts", "a,b"}, m)), Not(HasSubstr("plm")))
      << "other hosts cannot be reached without one";
}

TEST(LaunchPlan, SharedCoresAreSaid) {
  EXPECT_THAT(plan({"-n", "9"}, machine(4)).summary, HasSubstr("9 ranks share 8 cores"));
  EXPECT_THAT(plan({"-n", "8"}, machine(4)).summary, Not(HasSubstr("share")));
}

TEST(LaunchPlan, ATerminalIsPassedOn) {
  auto m = machine(4);
  m.terminal = true;
  const auto p = plan({"-n", "2"}, m);
  EXPECT_THAT(command(p), HasSubstr("-x MUSTER_TTY"));
  EXPECT_THAT(p.processes[0].environment, Contains(Pair("MUSTER_TTY", "1")));
}

TEST(LaunchPlan, SeveralHosts) {
  auto m = machine(4);
  m.environment = {{"NCCL_DEBUG", "INFO"}, {"HOME", "/root"}, {"MUSTER_LOG_LEVEL", "debug"}};
  const auto p = plan({"--hosts", "a:2,b:3"}, m);
  EXPECT_THAT(command(p), HasSubstr("-np 5 --host a:2,b:3 --bind-to none"));
  EXPECT_THAT(command(p), HasSubstr("-x MUSTER_LOG_LEVEL -x NCCL_DEBUG /bin/agent"));
  EXPECT_THAT(command(p), Not(HasSubstr("oversubscribe")));
  EXPECT_THAT(command(p), Not(HasSubstr("HOME")));
  ASSERT_EQ(p.ranks.size(), 5u);
  EXPECT_EQ(p.ranks[2].host, "b");
  EXPECT_EQ(p.ranks[4].local_rank, 2);
  EXPECT_EQ(p.ranks_on_first_node, 2);
}

TEST(LaunchPlan, RanksFillTheFirstSlots) {
  const auto p = plan({"--hosts", "a:2,b:3", "-n", "3"}, machine(4));
  EXPECT_THAT(command(p), HasSubstr("--host a:2,b:1"));
  EXPECT_THAT(command(plan({"--hosts", "a:2,b:3", "-n", "2"}, machine(4))), HasSubstr("--host a:2 "));
  EXPECT_THAT(command(plan({"--hosts", "a,b", "-n", "5"}, machine(4))), HasSubstr("--host a:3,b:2"));
  EXPECT_THAT(command(plan({"--hosts", "a,b,c", "--nnodes", "2", "--nproc-per-node", "4"}, machine(4))),
              HasSubstr("-np 8 --host a:4,b:4"));
}

TEST(LaunchPlan, ASlurmAllocation) {
  auto m = machine(4);
  m.environment = {{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "2"}};
  const auto p = plan({"--nproc-per-node", "4"}, m);
  EXPECT_THAT(command(p), HasSubstr("-np 8 --map-by ppr:4:node"));
  EXPECT_EQ(p.ranks[7].node, 1);
  EXPECT_THAT(refusal({"--nnodes", "3"}, m), HasSubstr("--nnodes: found 3, but no other node is known"));
}

TEST(LaunchPlan, LocalEngine) {
  const auto p = plan({"-n", "2", "--engine", "local"}, machine(4));
  ASSERT_EQ(p.processes.size(), 2u);
  EXPECT_THAT(p.processes[1].argv, ElementsAre("/bin/agent", "--run-dir", "runs/today"));
  for (const auto& wanted : std::map<std::string, std::string>{{"MUSTER_RANK", "1"},
                                                               {"MUSTER_WORLD_SIZE", "2"},
                                                               {"MUSTER_LOCAL_RANK", "1"},
                                                               {"MUSTER_LOCAL_WORLD_SIZE", "2"},
                                                               {"MUSTER_NODE", "0"},
                                                               {"MUSTER_NODE_COUNT", "1"},
                                                               {"MUSTER_MASTER_ADDR", "127.0.0.1"},
                                                               {"MUSTER_MASTER_PORT", "4567"},
                                                               {"MUSTER_JOB_TOKEN", "token"}}) {
    EXPECT_THAT(p.processes[1].environment, Contains(wanted));
  }
}

TEST(LaunchPlan, WithoutMpirunRanksStartDirectly) {
  const auto p = plan({"-n", "2"}, machine(0));
  EXPECT_EQ(p.engine, Engine::kLocal);
  EXPECT_THAT(p.warnings, IsEmpty());
  auto hydra = machine(0);
  hydra.mpirun = "/bin/mpirun";
  hydra.mpi_version = "HYDRA build details:";
  EXPECT_EQ(plan({}, hydra).engine, Engine::kLocal);
  EXPECT_THAT(plan({}, hydra).warnings, ElementsAre(HasSubstr("is not Open MPI's ('HYDRA")));
}

TEST(LaunchPlan, Contradictions) {
  EXPECT_THAT(refusal({"--engine", "mpirun"}, machine(0)), HasSubstr("--engine mpirun: mpirun is not in PATH"));
  EXPECT_THAT(refusal({"--hosts", "a,b"}, machine(0)), HasSubstr("ranks on other hosts need mpirun"));
  EXPECT_THAT(refusal({"--hosts", "a,b", "--engine", "local"}, machine(4)), HasSubstr("--engine local"));
  EXPECT_THAT(refusal({"--nnodes", "2"}, machine(4)), HasSubstr("--nnodes: found 2"));
  EXPECT_THAT(refusal({"-n", "3", "--nproc-per-node", "2"}, machine(4)),
              HasSubstr("-n: found 3, but --nproc-per-node 2 on 1 node makes 2"));
  EXPECT_THAT(refusal({"--hosts", "a", "--nnodes", "2"}, machine(4)), HasSubstr("--nnodes: found 2, but 1 hosts"));
  EXPECT_EQ(refusal({"--hosts", "here:2", "--engine", "local"}, machine(4)), "accepted");
}

TEST(LaunchPlan, MoreRanksThanSlotsStayOnTheLastHost) {
  const auto p = plan({"--hosts", "here:1", "-n", "3"}, machine(4));
  EXPECT_EQ(p.ranks.size(), 3u);
  EXPECT_THAT(command(p), HasSubstr("--host here:3"));
}

TEST(LaunchPlan, DryRunShowsCommandsThatAShellReadsBack) {
  const auto text = to_text(plan({"-n", "1", "--data", "it's here", "--engine", "local"}, machine(4)));
  EXPECT_THAT(text, HasSubstr("rank 0: here (node 0, local rank 0)"));
  EXPECT_THAT(text, HasSubstr(R"(/bin/agent --data 'it'\''s here' --run-dir runs/today)"));
}

}  // namespace
}  // namespace muster::launcher
