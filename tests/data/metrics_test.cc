#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "comm/base/error.h"
#include "worker/metrics/console.h"

namespace muster::worker {
namespace {

StepReport example() {
  StepReport r;
  r.step = 120;
  r.loss = 2.10344;
  r.lr = 9.9e-4;
  r.grad_norm = 1.213;
  r.step_ms = 31.41;
  r.tokens_per_second = 12345.6;
  return r;
}

TEST(ProgressLine, SaysWhatAPersonWantsToKnow) {
  EXPECT_EQ(progress_line(example(), 2000),
            "step  120/2000  loss 2.1034  lr 9.90e-04  grad 1.21  12.3k tok/s  31.41 ms/step  ETA 59s");
}

TEST(ProgressLine, LeavesOutPartsOfANarrowTerminal) {
  EXPECT_EQ(progress_line(example(), 2000, 200), progress_line(example(), 2000));
  EXPECT_EQ(progress_line(example(), 2000, 80), "step  120/2000  loss 2.1034  lr 9.90e-04  12.3k tok/s  31.41 ms/step  ETA 59s");
  EXPECT_EQ(progress_line(example(), 2000, 60), "step  120/2000  loss 2.1034  12.3k tok/s  ETA 59s");
  for (int columns = 1; columns < 120; ++columns)
    EXPECT_LT(progress_line(example(), 2000, columns).size(), static_cast<size_t>(columns));
}

TEST(ProgressLine, LargeSmallAndBrokenNumbers) {
  StepReport r = example();
  r.tokens_per_second = 1234567;
  r.step_ms = 20000;
  r.loss = std::nan("");
  EXPECT_EQ(progress_line(r, 2000),
            "step  120/2000  loss nan  lr 9.90e-04  grad 1.21  1.23M tok/s  20000.00 ms/step  ETA 10h26m");
  r.step_ms = 60;
  EXPECT_NE(progress_line(r, 2000).find("ETA 1m53s"), std::string::npos);
}

TEST(Console, PlainLinesElsewhere) {
  RunConfig c;
  ::testing::internal::CaptureStdout();
  {
    Console console(c);
    console.on_step(example());
    console.on_step(example());
  }
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(out, progress_line(example(), 2000) + "\n" + progress_line(example(), 2000) + "\n");
}

TEST(Console, LeavesTheCursorOnAFreshLine) {
  ::setenv("MUSTER_TTY", "1", 1);
  ::testing::internal::CaptureStdout();
  {
    Console console(RunConfig{});
    console.on_step(example());
  }
  ::unsetenv("MUSTER_TTY");
  EXPECT_TRUE(::testing::internal::GetCapturedStdout().ends_with("s\n"));
}

TEST(Console, LiveLineIsOverwrittenAndEvaluationsStay) {
  ::setenv("MUSTER_TTY", "1", 1);
  RunConfig c;
  ::testing::internal::CaptureStdout();
  {
    Console console(c);
    console.on_step(example());
    console.on_step(example());
    console.on_evaluation({250, 2.0, 1.9});
  }
  const std::string out = ::testing::internal::GetCapturedStdout();
  ::unsetenv("MUSTER_TTY");
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\r'), 2);
  EXPECT_NE(out.find("step 250/2000  validation loss 2.0000 (best 1.9000)\n"), std::string::npos) << out;
}

TEST(RunLog, WritesOneObjectALine) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-log-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    RunLog log(folder + "/run");
    log.write(example());
    log.write(EvaluationReport{250, 2.5, 2.0});
  }
  std::ifstream in(folder + "/run/metrics.jsonl");
  std::string first, second, rest;
  std::getline(in, first);
  std::getline(in, second);
  EXPECT_FALSE(std::getline(in, rest));
  const auto row = nlohmann::json::parse(first);
  EXPECT_EQ(row["step"], 120);
  EXPECT_EQ(row["loss"], 2.10344);
  EXPECT_EQ(row["tokens_per_second"], 12346);
  EXPECT_EQ(row["step_ms"], 31.41);
  EXPECT_EQ(nlohmann::json::parse(second), (nlohmann::json{{"step", 250}, {"val_loss", 2.5}}));
  std::filesystem::remove_all(folder);
}

TEST(RunLog, FullDiskIsSaid) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-log-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::filesystem::create_symlink("/dev/full", folder + "/metrics.jsonl");
  RunLog log(folder);
  try {
    log.write(example());
    FAIL() << "a write to /dev/full succeeded";
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()), folder + "/metrics.jsonl: cannot write: No space left on device; free some space");
  }
  std::filesystem::remove_all(folder);
}

TEST(RunLog, NumbersThatJsonLacksAreNull) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-log-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  StepReport r = example();
  r.loss = std::nan("");
  r.grad_norm = INFINITY;
  RunLog(folder).write(r);
  std::ifstream in(folder + "/metrics.jsonl");
  const auto row = nlohmann::json::parse(in);
  EXPECT_TRUE(row["loss"].is_null());
  EXPECT_TRUE(row["grad_norm"].is_null());
  std::filesystem::remove_all(folder);
}

TEST(RunLog, RefusesAFolderItCannotMake) { EXPECT_THROW(RunLog("/proc/none/run"), InputError); }

}  // namespace
}  // namespace muster::worker
