// Real training through the programs: launcher, agents and the CPU worker.

#include <cmath>

#include <nlohmann/json.hpp>

#include "tests/e2e/job.h"

namespace muster::e2e {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Row = nlohmann::json;

class TrainingJob : public Job {
 public:
  TrainingJob() {
    set("MUSTER_WORKER", kPrograms + "/muster-worker");
    std::ofstream text(folder() / "text.txt");
    for (int i = 0; i < 6000; ++i) text << static_cast<char>('a' + (i * i + i / 7) % 26);
  }

  std::vector<std::string> settings(int ranks, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"--data",          folder() / "text.txt", "--run-dir",       run_folder(), "--num-layers",   "2",  "--hidden-size", "16",
                                    "--num-attention-heads", "2",             "--seq-length",    "16",         "--train-iters",  "20", "--lr-warmup-iters", "2",
                                    "--log-interval",  "1",                   "--eval-interval", "10",         "--eval-iters",   "3",  "--threads",     "1",
                                    "--sample-tokens", "20",                  "--device",        "cpu",        "--precision",    "fp64",
                                    "--global-batch-size", "12",              "--micro-batch-size", std::to_string(12 / ranks)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> launch(int ranks, std::vector<std::string> more = {}) const {
    return join({kMuster, "launch", "-n", std::to_string(ranks)}, settings(ranks, std::move(more)));
  }
  static std::vector<std::string> join(std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  // Rows of metrics.jsonl that have this key.
  std::vector<Row> rows(const std::string& key) const {
    std::vector<Row> found;
    std::ifstream in(run_folder() / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      if (Row row = Row::parse(line); row.contains(key)) found.push_back(row);
    }
    return found;
  }
  std::vector<double> values(const std::string& key) const {
    std::vector<double> found;
    for (const Row& row : rows(key)) found.push_back(row[key]);
    return found;
  }
};

TEST(Training, AnyNumberOfRanksTrainsTheSameModel) {
  TrainingJob one;
  ASSERT_EQ(one.run(one.launch(1)), 0) << one.err();
  const auto losses = one.values("loss"), validation = one.values("val_loss");
  ASSERT_EQ(losses.size(), 20u);
  ASSERT_EQ(validation.size(), 2u);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_THAT(one.out(), HasSubstr("--- sample ---"));
  for (const int ranks : {2, 3}) {
    TrainingJob many;
    ASSERT_EQ(many.run(many.launch(ranks)), 0) << many.err();
    const auto other = many.values("loss");
    ASSERT_EQ(other.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(other[i], losses[i], 1e-10) << "step " << i + 1;
    EXPECT_NEAR(many.values("val_loss")[1], validation[1], 1e-10);
    EXPECT_THAT(many.left(), IsEmpty());
  }
}

TEST(Training, UnderBareMpirunAsThroughLaunch) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun here";
  TrainingJob launched, bare;
  ASSERT_EQ(launched.run(launched.launch(2)), 0) << launched.err();
  ASSERT_EQ(bare.run(TrainingJob::join({mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", kMuster, "agent"}, bare.settings(2))), 0) << bare.err();
  EXPECT_EQ(launched.values("loss"), bare.values("loss"));  // the same layout: to the last bit
}

TEST(Training, EveryRowHasItsKeys) {
  TrainingJob job;
  ASSERT_EQ(job.run(job.launch(2)), 0) << job.err();
  for (const Row& row : job.rows("loss")) {
    for (const char* key : {"step", "loss", "tokens_per_second", "step_ms", "lr", "grad_norm"}) EXPECT_TRUE(row.contains(key)) << row;
  }
  for (const Row& row : job.rows("val_loss")) EXPECT_TRUE(row.contains("step"));
}

TEST(Training, AWorkerKilledInMidRunIsNamed) {
  TrainingJob job;
  job.begin(job.launch(2, {"--train-iters", "1000000", "--eval-interval", "0"}));
  const auto deadline = Deadline::after(kPatience);
  while (job.values("loss").size() < 5 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  const pid_t worker = job.find("muster-worker", 1);
  ASSERT_GT(worker, 0) << job.err();
  kill(worker, SIGKILL);
  EXPECT_EQ(job.end(), 137) << job.err();
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("rank 1 on "))) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("worker killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Training, AStoppedWorkerIsALatePeer) {
  TrainingJob job;
  job.begin(job.launch(2, {"--train-iters", "1000000", "--eval-interval", "0", "--comm-timeout-s", "2"}));
  const auto deadline = Deadline::after(kPatience);
  while (job.values("loss").size() < 5 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  const pid_t worker = job.find("muster-worker", 1);
  ASSERT_GT(worker, 0) << job.err();
  kill(worker, SIGSTOP);
  EXPECT_EQ(job.end(), 3) << job.err();
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr("rank 1"))) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Training, CtrlCInMidRun) {
  TrainingJob job;
  job.begin(job.launch(2, {"--train-iters", "1000000", "--eval-interval", "0"}));
  const auto deadline = Deadline::after(kPatience);
  while (job.values("loss").size() < 5 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(10));
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.end(), 130) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

struct Refused {
  std::vector<std::string> more;
  std::string part;
};
class RefusedTraining : public testing::TestWithParam<Refused> {};

TEST_P(RefusedTraining, IsOneLine) {
  TrainingJob job;
  std::ofstream(job.folder() / "empty.txt");
  std::ofstream(job.folder() / "short.txt") << "abcdefghijklmnop";
  std::ofstream(job.folder() / "cut.bin", std::ios::binary) << std::string("\xd8\xf6\x34\x01\x01\x00\x00\x00\x10\x00\x00\x00", 12);
  auto more = GetParam().more;
  for (auto& word : more) {
    if (word.starts_with("@")) word = job.folder() / word.substr(1);
  }
  EXPECT_EQ(job.run(job.launch(2, more)), 2) << job.err();
  EXPECT_THAT(final_lines(job.err()), ElementsAre(HasSubstr(GetParam().part))) << job.err();
  EXPECT_THAT(job.left(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, RefusedTraining,
                         testing::Values(Refused{{"--data", "@missing.txt"}, "missing.txt"}, Refused{{"--data", "@empty.txt"}, "empty"},
                                         Refused{{"--data", "@short.txt"}, "wanted at least"}, Refused{{"--data", "@cut.bin"}, "cut.bin"},
                                         Refused{{"--lerning-rate", "1"}, "learning_rate"}, Refused{{"--lr", "fast"}, "fast"},
                                         Refused{{"--global-batch-size", "13"}, "13"}, Refused{{"--vocab-size", "5"}, "vocab_size"},
                                         Refused{{"--num-attention-heads", "3"}, "num_attention_heads"}));

}  // namespace
}  // namespace muster::e2e
