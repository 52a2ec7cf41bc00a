// The programs themselves: launcher, mpirun, agents and a worker without training. Each job is run by every engine.

#include "tests/e2e/job.h"

namespace muster::e2e {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// "local" and "mpirun": muster launch; "bare": mpirun -np N muster agent.
class Engines : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "local" && find_program("mpirun").empty()) GTEST_SKIP() << "no mpirun here";
  }
  std::vector<std::string> command(const Job& job, int ranks) const {
    const std::vector<std::string> settings = {"--run-dir", job.run_folder()};
    std::vector<std::string> argv = {kMuster, "launch", "-n", std::to_string(ranks), "--engine", GetParam()};
    if (GetParam() == "bare")
      argv = {find_program("mpirun"), "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks), kMuster, "agent"};
    argv.insert(argv.end(), settings.begin(), settings.end());
    return argv;
  }
  // Runs a job that fails: its exit code, one line that names the cause, nothing left.
  void expect_failure(const std::string& mode, const std::string& rank, int ranks, int exit_code, const std::string& cause) {
    Job job;
    job.set("FAKE_MODE", mode);
    job.set("FAKE_RANK", rank);
    EXPECT_EQ(job.run(command(job, ranks)), exit_code) << job.err();
    EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr(cause))) << job.err();
    EXPECT_THAT(job.left(), IsEmpty());
  }
};

INSTANTIATE_TEST_SUITE_P(All, Engines, testing::Values("local", "mpirun", "bare"), [](const auto& info) { return info.param; });

TEST_P(Engines, AGoodJob) {
  for (const int ranks : {1, 2, 4}) {
    Job job;
    ASSERT_EQ(job.run(command(job, ranks)), 0) << job.err();
    EXPECT_EQ(job.out(), "rank 0 done\n");
    EXPECT_THAT(job.err(), HasSubstr(fmt::format("rank 0 met {} ranks", ranks)));
    EXPECT_THAT(job.err(), Not(HasSubstr("rank 1 met"))) << "other ranks write to their logs";
    EXPECT_THAT(final_lines(job.err()), IsEmpty());
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(read_file(job.log(rank)), testing::ContainsRegex(fmt::format("[0-9:.]+ rank {} met {} ranks\n", rank, ranks)));
      EXPECT_THAT(read_file(job.log(rank)), HasSubstr(fmt::format(" rank {} done\n", rank)));
    }
    EXPECT_THAT(read_file(job.run_folder() / "config.yaml"), HasSubstr("train_iters: 2000"));
    EXPECT_THAT(read_file(job.run_folder() / "outcome.json"), HasSubstr("\"exit_code\":0"));
    EXPECT_THAT(job.left(), IsEmpty());
  }
}

TEST_P(Engines, AWorkersExitCode) {
  expect_failure("exit:7", "1", 3, 7, "rank 1 on " + host_name() + ": worker exited with code 7; log: ");
}
TEST_P(Engines, AWorkerThatDiesBeforeTheExchange) {
  expect_failure("early:4", "0", 2, 4, "rank 0 on " + host_name() + ": worker exited with code 4");
}
TEST_P(Engines, AKilledWorker) { expect_failure("kill9", "1", 2, 137, "worker killed by signal 9 (SIGKILL); log: "); }
TEST_P(Engines, ACrash) {
  expect_failure("segfault", "0", 2, 139, "rank 0 on " + host_name() + ": worker killed by signal 11 (SIGSEGV)");
}
TEST_P(Engines, OnlyAConsequence) {
  expect_failure("peer", "1", 2, 3, "rank 1 on " + host_name() + ": all_reduce #7: rank 0: connection lost");
}
TEST_P(Engines, ARankThatDoesNotCome) { expect_failure("late", "1", 3, 3, "did not arrive before the deadline: rank 1"); }

TEST_P(Engines, RefusedInputIsShownOnceInTheWorkersWords) {
  Job job;
  job.set("FAKE_MODE", "refuse");  // on every rank
  EXPECT_EQ(job.run(command(job, 3)), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(EndsWith(": data: found nothing, wanted a file")));
  EXPECT_EQ(count(job.err(), "data: found nothing"), 1) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST_P(Engines, AStubbornRankDoesNotKeepAFailure) {
  Job job;
  job.set("FAKE_MODE", "segfault");
  job.set("FAKE_RANK", "1");
  job.set("FAKE_OTHERS", "stubborn");
  EXPECT_EQ(job.run(command(job, 2)), 139);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("worker killed by signal 11 (SIGSEGV)"))) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST_P(Engines, RefusedConfigurationStartsNothing) {
  Job job;
  auto argv = command(job, 2);
  argv.insert(argv.end(), {"--lrr", "1"});
  EXPECT_EQ(job.run(argv), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("lrr")));
  EXPECT_FALSE(fs::exists(job.run_folder()));
}

TEST_P(Engines, ARunFolderThatCannotBeMade) {
  Job job;
  std::ofstream(job.folder() / "file") << "x";
  auto argv = command(job, 2);
  argv.back() = job.folder() / "file" / "run";
  EXPECT_EQ(job.run(argv), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("run_dir: cannot make"))) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST_P(Engines, MuchOutputArrivesWhole) {
  Job job;
  job.set("FAKE_MODE", "chatty");
  EXPECT_EQ(job.run(command(job, 2)), 0) << job.err();
  EXPECT_EQ(count(job.out(), "\n"), 20'001);
  EXPECT_THAT(job.out(), EndsWith("line 19999 of many\nrank 0 done\n"));
  EXPECT_EQ(count(read_file(job.log(1)), "\n"), 20'002);
}

TEST_P(Engines, Interrupted) {
  for (const auto& [mode, signal] : {std::pair{"hang", SIGINT}, std::pair{"stubborn", SIGTERM}}) {
    Job job;
    job.set("FAKE_MODE", mode);
    job.begin(command(job, 2));
    ASSERT_TRUE(job.wait_for("rank 0 met 2 ranks")) << job.err();
    kill(job.pid(), signal);
    const int code = job.end();
    if (GetParam() == "bare") {
      EXPECT_NE(code, 0);  // mpirun's own choice
      EXPECT_THAT(final_lines(job.err()), IsEmpty()) << "mpirun says it";
    } else {
      EXPECT_EQ(code, 128 + signal);
      EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("stopped by " + signal_name(signal))));
    }
    EXPECT_THAT(job.left(), IsEmpty());
  }
}

TEST_P(Engines, AKilledAgent) {
  for (const int rank : {0, 1}) {
    Job job;
    job.set("FAKE_MODE", "hang");
    job.begin(command(job, 3));
    ASSERT_TRUE(job.wait_for("rank 0 met 3 ranks")) << job.err();
    const pid_t agent = job.find("muster-agent", rank);
    ASSERT_GT(agent, 0);
    kill(agent, SIGKILL);
    EXPECT_EQ(job.end(), 137) << job.err();
    if (GetParam() == "local") {
      EXPECT_THAT(final_lines(job.err()), ElementsAre(testing::ContainsRegex(fmt::format("rank {}.*: its agent is lost", rank))));
    } else if (GetParam() == "mpirun") {
      EXPECT_EQ(final_lines(job.err()).size(), 1u) << job.err();
    }
    EXPECT_THAT(job.left(), IsEmpty());
  }
}

TEST_P(Engines, AStoppedAgentIsLostToo) {
  Job job;
  job.set("FAKE_MODE", "hang");
  job.begin(command(job, 2));
  ASSERT_TRUE(job.wait_for("rank 0 met 2 ranks")) << job.err();
  const pid_t agent = job.find("muster-agent", 1);
  ASSERT_GT(agent, 0);
  kill(agent, SIGSTOP);
  EXPECT_EQ(job.end(), 3) << job.err();
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("rank 1 on " + host_name() + ": its agent is lost")));
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST_P(Engines, NothingOutlivesAKilledStarter) {
  Job job;
  job.set("FAKE_MODE", "stubborn");
  job.begin(command(job, 2));
  ASSERT_TRUE(job.wait_for("rank 0 met 2 ranks")) << job.err();
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.end(), 137);
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Launch, ASecondInterruptKillsAtOnce) {
  Job job;
  job.set("FAKE_MODE", "hang");
  job.begin({kMuster, "launch", "-n", "2", "--engine", "local", "--grace-s", "3600", "--run-dir", job.run_folder()});
  ASSERT_TRUE(job.wait_for("rank 0 met 2 ranks")) << job.err();
  kill(job.find("muster-agent", 0), SIGSTOP);
  kill(job.pid(), SIGINT);
  while (job.find("muster-agent", 1) > 0) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(ending_of(job.pid())) << "one agent does not answer, so the launcher waits";
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.end(), 130);
  EXPECT_EQ(final_lines(job.err()).size(), 1u) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Launch, WithoutSshInThePath) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun here";
  Job job;
  fs::create_directory(job.folder() / "bin");
  for (const char* name : {"mpirun", "sh", "true"}) fs::create_symlink(find_program(name), job.folder() / "bin" / name);
  job.set("PATH", job.folder() / "bin");
  EXPECT_EQ(job.run({kMuster, "launch", "-n", "2", "--engine", "mpirun", "--run-dir", job.run_folder()}), 0) << job.err();
  EXPECT_EQ(count(job.err(), "no ssh here, and none is needed"), 1);
}

TEST(Launch, ADryRunStartsNothing) {
  Job job;
  EXPECT_EQ(job.run({kMuster, "launch", "-n", "2", "--engine", "local", "--dry-run", "--run-dir", job.run_folder()}), 0);
  EXPECT_EQ(count(job.out(), "MUSTER_RANK="), 2);
  EXPECT_THAT(job.out(), HasSubstr("rank 1: " + host_name()));
  EXPECT_FALSE(fs::exists(job.run_folder()));
}

// words, wanted on stderr
class Refusals : public testing::TestWithParam<std::pair<std::vector<std::string>, std::string>> {};

TEST_P(Refusals, AreOneLine) {
  Job job;
  auto argv = GetParam().first;
  argv.insert(argv.begin(), kMuster);
  EXPECT_EQ(job.run(argv), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr(GetParam().second)));
  EXPECT_EQ(count(job.err(), "\n"), 1) << job.err();
  EXPECT_EQ(job.out(), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, Refusals,
    testing::Values(std::pair{std::vector<std::string>{"lunch"}, "unknown verb 'lunch'; did you mean launch?"},
                    std::pair{std::vector<std::string>{"--versoin"}, "unknown option '--versoin'; did you mean --version?"},
                    std::pair{std::vector<std::string>{"teapot"}, "unknown verb 'teapot'; wanted launch"},
                    std::pair{std::vector<std::string>{"launch", "-n", "0"}, "-n: found '0'"},
                    std::pair{std::vector<std::string>{"launch", "--hostfile", "/nowhere"}, "--hostfile: cannot open /nowhere"},
                    std::pair{std::vector<std::string>{"launch", "/nowhere.yaml"}, "/nowhere.yaml: cannot open"},
                    std::pair{std::vector<std::string>{"launch", "-n", "2", "--global-batch-size", "13"},
                              "global_batch_size: found 13"},
                    std::pair{std::vector<std::string>{"launch", "-n", "2", "--device", "cuda"}, "no GPU is visible"},
                    std::pair{std::vector<std::string>{"agent", "--lrr", "1"}, "lrr"}));

TEST(Launch, AWorkerThatIsNotThere) {
  Job job;
  job.set("MUSTER_WORKER", "/nowhere/worker");
  EXPECT_EQ(job.run({kMuster, "launch", "-n", "2"}), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("/nowhere/worker: not an executable file")));
}

TEST(Launch, AWorkerThatCannotBeStarted) {
  Job job;
  std::ofstream(job.folder() / "worker") << "#!/nowhere/interpreter\n";
  fs::permissions(job.folder() / "worker", fs::perms::owner_all);
  job.set("MUSTER_WORKER", job.folder() / "worker");
  EXPECT_EQ(job.run({kMuster, "launch", "-n", "2", "--engine", "local", "--run-dir", job.run_folder()}), 2);
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("cannot start: No such file")));
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Help, IsOnStdout) {
  Job job;
  EXPECT_EQ(job.run({kMuster, "--help"}), 0);
  EXPECT_THAT(job.out(), HasSubstr("muster launch CONFIG.yaml"));
  EXPECT_EQ(job.err(), "");
  EXPECT_EQ(job.run({kMuster, "launch", "--help"}), 0);
  EXPECT_THAT(job.out(), testing::AllOf(HasSubstr("--hostfile"), HasSubstr("--train_iters")));
}

}  // namespace
}  // namespace muster::e2e
