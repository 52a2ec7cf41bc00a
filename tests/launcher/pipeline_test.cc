#include "launcher/pipeline.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/csv.h"

namespace muster::launcher {
namespace {

using testing::HasSubstr;

// Why the verb refuses, or "exit code N".
std::string refusal(const std::vector<std::string>& words) {
  try {
    return "exit code " + std::to_string(pipeline(words));
  } catch (const InputError& error) {
    return error.what();
  }
}

// What the verb prints; its exit code must be 0.
std::string printed(const std::vector<std::string>& words) {
  testing::internal::CaptureStdout();
  const std::string refused = refusal(words);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(refused, "exit code 0");
  return out;
}

std::string report(const std::vector<std::string>& words) {
  const auto options = parse_pipeline_options(words);
  return pipeline_report(sharding::pipeline::make_schedule(options.schedule), options);
}

std::string text_of(const std::filesystem::path& path) {
  std::stringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// A folder that goes away again.
class PipelineFiles : public testing::Test {
 protected:
  PipelineFiles() { std::filesystem::create_directories(folder_); }
  ~PipelineFiles() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

 private:
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("muster_pipeline_test_" + std::to_string(getpid()));
};

TEST(Pipeline, Report) {
  EXPECT_EQ(report({"--stages", "2", "--micro-batches=2"}),
            "1f1b: 2 ranks, 2 micro-batches, 1 chunk a rank; complete, cannot deadlock\n\n"
            "rank 0  F0 F1 .  .  B0 -- .  B1 --\n"
            "rank 1  .  F0 B0 -- F1 B1 -- .  .\n\n"
            "step              9  (forward 1, backward 1 + 1, message 0)\n"
            "bubble            50.0 %  of the work alone\n"
            "idle              33.3 %  of the step\n"
            "peak activations  2 1  by rank, in micro-batches x stages\n");
}

TEST(Pipeline, CostsAndChunksCount) {
  EXPECT_THAT(report({"--schedule", "zbv", "--stages", "4", "--micro-batches", "8", "--backward-weight", "0.6"}),
              HasSubstr("idle              6.7 %"));
  EXPECT_THAT(report({"--schedule", "interleaved-1f1b", "--stages", "4", "--micro-batches", "8", "--chunks", "4"}),
              HasSubstr("idle              8.6 %"));
  EXPECT_THAT(report({"--stages", "2", "--micro-batches", "1", "--forward", "2", "--backward-input", "3", "--message", "0.5"}),
              HasSubstr("step              13  (forward 2, backward 3 + 1, message 0.5)"));
}

TEST(Pipeline, Json) {
  const auto json = nlohmann::json::parse(report({"--stages", "4", "--micro-batches", "8", "--json"}));
  EXPECT_EQ(json["peak_activations"], (std::vector<int>{4, 3, 2, 1}));
  EXPECT_DOUBLE_EQ(json["bubble"], 0.375);
  EXPECT_EQ(json["actions"].size(), 4u);
  EXPECT_EQ(json["actions"][3][1], "3RECV_F0");
}

TEST(Pipeline, RefusesOptions) {
  EXPECT_EQ(refusal({}), "--stages: missing, wanted --stages and --micro-batches, or --csv");
  EXPECT_EQ(refusal({"--stages", "2"}), "--micro-batches: missing, wanted the number of one step");
  EXPECT_EQ(refusal({"--stages"}), "--stages: needs a value");
  EXPECT_THAT(refusal({"--stages", "two"}), HasSubstr("--stages: found 'two'"));
  EXPECT_THAT(refusal({"--stages", "0"}), HasSubstr("--stages: found '0'"));
  EXPECT_EQ(refusal({"--stage", "2"}), "command line: unknown option '--stage', did you mean --stages?");
  EXPECT_EQ(refusal({"2"}), "command line: unknown word '2'; see muster pipeline --help");
  EXPECT_THAT(refusal({"--csv", "x.csv", "--stages", "2"}), HasSubstr("--csv: the file says which schedule it is"));
  for (const char* bad : {"0", "-1", "nan", "inf", "1x", "", "1e99"})
    EXPECT_THAT(refusal({"--forward", bad}), HasSubstr("--forward: found '" + std::string(bad) + "', wanted a time")) << bad;
  EXPECT_THAT(refusal({"--schedule", "1f2b", "--stages", "2", "--micro-batches", "2"}),
              HasSubstr("schedule: found '1f2b', wanted gpipe"));
  EXPECT_THAT(refusal({"--stages", "2", "--micro-batches", "2", "--max-live", "1"}),
              HasSubstr("rank 0: found 2 live activations"));
  EXPECT_THAT(refusal({"--stages", "2", "--micro-batches", "2", "--svg", "/no/such/folder/x.svg"}),
              HasSubstr("--svg: cannot write /no/such/folder/x.svg"));
}

TEST_F(PipelineFiles, RefusesSchedulesThatCannotRun) {
  EXPECT_THAT(refusal({"--csv", write("a.csv", "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n")}),
              HasSubstr("a.csv: rank 1: found no 1RECV_F0; rank 0 sends it (0SEND_F0)"));
  EXPECT_THAT(refusal({"--csv", write("b.csv", "0F0,0B0\n1F0,1Q0\n")}), HasSubstr("b.csv:2:5: found '1Q0'"));
}

TEST_F(PipelineFiles, WritesWhatItReads) {
  printed({"--schedule", "zbv", "--stages", "2", "--micro-batches", "3", "--write-csv", path("z.csv"), "--svg", path("z.svg")});
  EXPECT_THAT(printed({"--csv", path("z.csv"), "--write-csv", path("again.csv")}),
              HasSubstr("z.csv: 2 ranks, 3 micro-batches, 2 chunks"));
  EXPECT_EQ(text_of(path("z.csv")), text_of(path("again.csv")));
  EXPECT_EQ(text_of(path("z.csv")), to_csv(sharding::pipeline::make_schedule({"zbv", 2, 3})));
  EXPECT_THAT(text_of(path("z.svg")), testing::StartsWith("<svg "));
}

TEST(Pipeline, Help) { EXPECT_THAT(printed({"--stages", "2", "--help"}), HasSubstr("--write-csv FILE")); }

}  // namespace
}  // namespace muster::launcher
