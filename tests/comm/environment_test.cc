#include "comm/rendezvous/environment.h"

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "comm/rendezvous/slurm.h"

namespace muster::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Good {
  const char* name;
  Environment environment;
  std::string source;
  Bootstrap::Kind kind;
  std::vector<int> place;  // rank, world, local rank, local world, node, nodes
  std::string master;      // address:port
};

void PrintTo(const Good& c, std::ostream* out) { *out << c.name; }

std::vector<int> numbers(const Place& p) {
  return {p.rank, p.world_size, p.local_rank, p.local_world_size, p.node, p.node_count};
}

const std::vector<Good>& good_cases() {
  using Kind = Bootstrap::Kind;
  static const std::vector<Good> all = {
      {"nothing", {}, "single", Kind::kSingle, {0, 1, 0, 1, 0, 1}, ""},
      {"static_",
       {{"MUSTER_RANK", "3"},
        {"MUSTER_WORLD_SIZE", "4"},
        {"MUSTER_LOCAL_RANK", "1"},
        {"MUSTER_LOCAL_WORLD_SIZE", "2"},
        {"MUSTER_NODE", "1"},
        {"MUSTER_NODE_COUNT", "2"},
        {"MUSTER_MASTER_ADDR", "10.0.0.1"},
        {"MUSTER_MASTER_PORT", "4000"}},
       "static",
       Kind::kStar,
       {3, 4, 1, 2, 1, 2},
       "10.0.0.1:4000"},
      {"static_alone", {{"MUSTER_RANK", "0"}, {"MUSTER_WORLD_SIZE", "1"}}, "static", Kind::kSingle, {0, 1, 0, 1, 0, 1}, ""},
      {"static_before_mpi",
       {{"MUSTER_RANK", "0"}, {"MUSTER_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       "static",
       Kind::kSingle,
       {0, 1, 0, 1, 0, 1},
       ""},
      {"mpi",
       {{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       "mpi",
       Kind::kMpi,
       {1, 2, 1, 2, 0, 1},
       ""},
      {"mpi_before_slurm",
       {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "9"}},
       "mpi",
       Kind::kMpi,
       {0, 1, 0, 1, 0, 1},
       ""},
      {"slurm",
       {{"SLURM_PROCID", "25"},
        {"SLURM_NTASKS", "28"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_NODEID", "3"},
        {"SLURM_STEP_TASKS_PER_NODE", "8(x3),4"},
        {"SLURM_STEP_NODELIST", "gpu[07-10]"},
        {"SLURM_JOB_ID", "123456"}},
       "slurm",
       Kind::kStar,
       {25, 28, 1, 4, 3, 4},
       "gpu07:23456"},
      {"slurm_own_port",
       {{"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_NODEID", "0"},
        {"SLURM_STEP_TASKS_PER_NODE", "2"},
        {"SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"},
        {"MUSTER_MASTER_PORT", "999"}},
       "slurm",
       Kind::kStar,
       {1, 2, 1, 2, 0, 1},
       "10.1.1.1:999"},
      {"torchrun",
       {{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "29500"}},
       "torchrun",
       Kind::kStar,
       {2, 4, 0, 2, 1, 2},
       "h:29500"},
      {"torchrun_store_on_its_port",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
       "torchrun",
       Kind::kStar,
       {0, 2, 0, 2, 0, 1},
       "h:29501"},
      {"hydra",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MUSTER_MASTER_ADDR", "h"}, {"MUSTER_MASTER_PORT", "7"}},
       "pmi",
       Kind::kStar,
       {1, 2, 1, 2, 0, 1},
       "h:7"},
  };
  return all;
}

class GoodEnvironment : public testing::TestWithParam<Good> {};

TEST_P(GoodEnvironment, IsUnderstood) {
  const Good& c = GetParam();
  const Bootstrap b = read_bootstrap(c.environment);
  EXPECT_EQ(b.place.source, c.source);
  EXPECT_EQ(b.kind, c.kind);
  EXPECT_EQ(numbers(b.place), c.place);
  EXPECT_EQ(b.kind == Bootstrap::Kind::kStar ? fmt::format("{}:{}", b.master_address, b.master_port) : "", c.master);
}

INSTANTIATE_TEST_SUITE_P(All, GoodEnvironment, testing::ValuesIn(good_cases()), [](const auto& info) { return info.param.name; });

struct Bad {
  const char* name;
  Environment environment;
  std::string words;  // of the refusal
};

void PrintTo(const Bad& c, std::ostream* out) { *out << c.name; }

const std::vector<Bad>& bad_cases() {
  static const std::vector<Bad> all = {
      {"rank_too_large",
       {{"MUSTER_RANK", "2"}, {"MUSTER_WORLD_SIZE", "2"}},
       "MUSTER_RANK: found 2, wanted less than MUSTER_WORLD_SIZE (2)"},
      {"no_number", {{"MUSTER_RANK", "one"}, {"MUSTER_WORLD_SIZE", "2"}}, "MUSTER_RANK: found 'one', wanted a whole number"},
      {"trailing", {{"MUSTER_RANK", "1x"}, {"MUSTER_WORLD_SIZE", "2"}}, "MUSTER_RANK: found '1x'"},
      {"negative", {{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK: found '-1'"},
      {"no_size", {{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE: not set"},
      {"no_master", {{"MUSTER_RANK", "0"}, {"MUSTER_WORLD_SIZE", "2"}}, "MUSTER_MASTER_ADDR: not set"},
      {"port",
       {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "70000"}},
       "MASTER_PORT: found '70000'"},
      {"local_above_world",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "7"}},
       "LOCAL_WORLD_SIZE: found 4, wanted at most the number of ranks (2)"},
      {"local_rank_above",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "7"}},
       "LOCAL_RANK: found 2, wanted less than LOCAL_WORLD_SIZE (2)"},
      {"slurm_sum",
       {{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "3"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_NODEID", "0"},
        {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}},
       "SLURM_STEP_TASKS_PER_NODE: found '2(x2)', a sum of 4, wanted the number of ranks (3)"},
      {"overflow", {{"MUSTER_RANK", "0"}, {"MUSTER_WORLD_SIZE", "99999999999999999999"}}, "MUSTER_WORLD_SIZE"},
  };
  return all;
}

class BadEnvironment : public testing::TestWithParam<Bad> {};

TEST_P(BadEnvironment, IsRefusedByName) {
  try {
    read_bootstrap(GetParam().environment);
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().words));
  }
}

INSTANTIATE_TEST_SUITE_P(All, BadEnvironment, testing::ValuesIn(bad_cases()), [](const auto& info) { return info.param.name; });

TEST(Slurm, TasksPerNode) {
  EXPECT_THAT(parse_tasks_per_node("T", "8(x3),4", 28), ElementsAre(8, 8, 8, 4));
  EXPECT_THAT(parse_tasks_per_node("T", "1", 1), ElementsAre(1));
  for (const char* bad : {"", "8(x3", "8(y3)", "8(x)", "(x3)", "8,,8", "0", "8(x0)", "8(x99999999)", "4(x2),"}) {
    EXPECT_THROW(parse_tasks_per_node("T", bad, 8), InputError) << bad;
  }
}

TEST(Slurm, FirstNode) {
  EXPECT_EQ(first_node("gpu07"), "gpu07");
  EXPECT_EQ(first_node("gpu07,gpu08"), "gpu07");
  EXPECT_EQ(first_node("gpu[07-10,12],login"), "gpu07");
  EXPECT_EQ(first_node("login,gpu[07-10]"), "login");
  EXPECT_EQ(first_node("gpu[3]"), "gpu3");
  EXPECT_EQ(first_node(""), "");
}

}  // namespace
}  // namespace muster::comm
