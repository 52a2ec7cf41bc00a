#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "comm/base/error.h"
#include "comm/topology/graph.h"
#include "comm/topology/xml.h"
#include "launcher/topo.h"
#include "tests/topology/inputs.h"

namespace muster::launcher {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

class TopoVerb : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    write("matrix", comm::topology::kMatrix);
    write("list", comm::topology::kList);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) { std::ofstream(path(name)) << text; }

  // stdout; stderr is kept in errors_.
  std::string run(const std::vector<std::string>& words) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(topo(words), kExitOk);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }

  std::string refusal(const std::vector<std::string>& words) {
    try {
      topo(words);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }

  const fs::path folder_ = fs::temp_directory_path() / ("muster-topo-test-" + std::to_string(getpid()));
  std::string errors_;
};

TEST_F(TopoVerb, PrintsTheMatrixInNvidiaSmisLayout) {
  const std::string text = run({"--from", path("matrix")});
  EXPECT_THAT(text, HasSubstr("\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
                              "GPU0\t X \tNV4\tSYS\tPIX\tNODE\t0-3,8\t0\t\tN/A\n"));
  EXPECT_THAT(text, HasSubstr("NIC0\tPIX\tPXB\tSYS\t X \tNODE\t\t\t\t\n"));
  EXPECT_THAT(text, HasSubstr("NIC Legend:\n\n  NIC0: mlx5_0\n"));
  EXPECT_THAT(errors_, HasSubstr("muster: GPU2: found 0 links"));
}

TEST_F(TopoVerb, PutsFilesOfOneMachineTogether) {
  const std::string facts = run({"--from", path("matrix"), "--from=" + path("list"), "--facts"});
  EXPECT_THAT(facts, HasSubstr("GPU1 numa=0 cpus=0-3,8 (nvidia-smi topo -m); uuid=GPU-22222222"));
}

TEST_F(TopoVerb, OtherViews) {
  EXPECT_THAT(run({"--from", path("matrix"), "--tree"}),
              StartsWith("NUMA node 0, CPUs 0-3,8\n  GPU0, links GPU1:4\n  GPU1, links GPU0:4\nNUMA node 1, CPUs 4-7\n  "
                         "GPU2\nNUMA node not known\n"
                         "  NIC0 mlx5_0\n  NIC1 mlx5_1\n"));
  EXPECT_THAT(run({"--from", path("matrix"), "--bandwidth"}), HasSubstr("   2    48.0  4 rings over NVLink\n"));
  const auto json = nlohmann::json::parse(run({"--from", path("matrix"), "--json"}));
  EXPECT_EQ(json["matrix"]["GPU0"]["GPU1"], "NV4");
  EXPECT_EQ(json["gpus"][2]["numa_node"]["value"], 1);
  EXPECT_EQ(json["gpus"][2]["numa_node"]["source"], "nvidia-smi topo -m");
  EXPECT_EQ(json["findings"].size(), 1u);
}

TEST_F(TopoVerb, DrawsWellFormedXml) {
  run({"--from", path("matrix"), "--svg", path("out.svg")});
  std::ifstream in(path("out.svg"));
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto svg = comm::topology::parse_xml(text, "out.svg");
  EXPECT_EQ(svg.name, "svg");
  EXPECT_THAT(text, HasSubstr("<title>NV4</title>"));
  EXPECT_THAT(text, HasSubstr(">mlx5_0</text>"));
}

TEST_F(TopoVerb, DrawsStrangeNames) {
  write("odd", std::string(comm::topology::kMatrix).replace(std::string(comm::topology::kMatrix).find("mlx5_0"), 6, "<\"&>"));
  run({"--from", path("odd"), "--svg", path("out.svg")});
  std::ifstream in(path("out.svg"));
  EXPECT_NO_THROW(comm::topology::parse_xml(std::string((std::istreambuf_iterator<char>(in)), {}), "out.svg"));
}

TEST_F(TopoVerb, ThisMachineHasCpus) { EXPECT_THAT(run({"--facts"}), HasSubstr("CPU0")); }

TEST_F(TopoVerb, RefusesBadInputInOneLine) {
  write("strange", "hello\n");
  EXPECT_THAT(refusal({"--from", path("strange")}), HasSubstr("strange: found none of the kinds known"));
  EXPECT_THAT(refusal({"--from", path("absent")}), HasSubstr("absent: found no file that can be read"));
  EXPECT_EQ(refusal({"--from"}), "--from: found no value; wanted a file");
  EXPECT_EQ(refusal({"--form", "x"}), "muster topo: unknown '--form'; did you mean --from?");
  EXPECT_EQ(refusal({"--tree", "--json"}), "--json: found --tree as well; wanted one of them");
  EXPECT_THAT(refusal({"--from", path("matrix"), "--svg", "/nowhere/x.svg"}), HasSubstr("--svg: cannot write /nowhere/x.svg"));
}

}  // namespace
}  // namespace muster::launcher
