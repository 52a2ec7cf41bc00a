#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "launcher/agent/introduction.h"
#include "launcher/agent/run_folder.h"
#include "launcher/outcome.h"

namespace muster::launcher {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Introduction, SurvivesTheWire) {
  const Introduction i{"host", "found \"x\"\nwanted y", "10.0.0.1", 4000, std::string(40, 'k'), "/runs/a b"};
  const auto back = introduction_from(to_text(i), 3);
  EXPECT_EQ(back.host, i.host);
  EXPECT_EQ(back.error, i.error);
  EXPECT_EQ(back.address, i.address);
  EXPECT_EQ(back.port, i.port);
  EXPECT_EQ(back.key, i.key);
  EXPECT_EQ(back.run_folder, i.run_folder);
}

TEST(Introduction, WhatIsNoneNamesItsRank) {
  auto other_version = to_text({});
  other_version.replace(other_version.find("\"version\":1"), 11, "\"version\":9");
  for (const std::string& bad : {std::string(), std::string("{}"), std::string("[1]"), std::string("\xff\xfe"),
                                 std::string("{\"version\":1,\"host\":5}"), other_version}) {
    try {
      introduction_from(bad, 3);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const PeerError& error) {
      EXPECT_EQ(error.context().rank, 3);
    }
  }
}

TEST(Introduction, BytesThatAreNoTextDoNotHarm) {
  Introduction i;
  i.error = "bad \xff byte";
  EXPECT_NO_THROW(introduction_from(to_text(i), 0));
}

class RunFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("muster-run-{}", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(RunFolder, HoldsTheConfigurationAndLogs) {
  worker::RunConfig config;
  config.run_dir = (folder_ / "a" / ".." / "run").string();
  config.train_iters = 77;
  const std::string made = make_run_folder(config);
  EXPECT_EQ(made, (folder_ / "run").string());
  const auto again = worker::load_config(made + "/config.yaml", {});
  EXPECT_EQ(again.train_iters, 77);
  EXPECT_EQ(again.run_dir, made);
  EXPECT_EQ(log_path_in(made, 3), made + "/logs/rank-3.log");
}

TEST_F(RunFolder, ForgetsTheOutcomeOfAnEarlierRun) {
  worker::RunConfig config;
  config.run_dir = folder_.string();
  write_outcome(folder_.string(), {137, "rank 1 on host: \xff killed"});
  const auto outcome = read_outcome(folder_.string());
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->exit_code, 137);
  EXPECT_THAT(outcome->cause, HasSubstr("rank 1 on host"));
  make_run_folder(config);
  EXPECT_FALSE(read_outcome(folder_.string()));
  std::ofstream(folder_ / "outcome.json") << "{\"exit_code\": \"x\"}";
  EXPECT_FALSE(read_outcome(folder_.string()));
}

TEST_F(RunFolder, OneThatCannotBeMadeIsNamed) {
  std::ofstream(folder_ / "file") << "x";
  worker::RunConfig config;
  config.run_dir = (folder_ / "file" / "run").string();
  try {
    make_run_folder(config);
    FAIL() << "made";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("run_dir: cannot make " + config.run_dir));
  }
  EXPECT_EQ(log_path_in(config.run_dir, 0), "");
}

TEST(ShownPath, IsRelativeBelowTheCurrentFolder) {
  EXPECT_EQ(shown_path((fs::current_path() / "runs" / "x").string()), "runs/x");
  EXPECT_EQ(shown_path("/elsewhere/x"), "/elsewhere/x");
}

}  // namespace
}  // namespace muster::launcher
