// Real machines as files: each parses to the graph kept beside this test. The files themselves are not part of this repository.
// MUSTER_TOPOLOGY_DIR (or $MUSTER_DATA_DIR/topology) names their folder; MUSTER_WRITE_EXPECTED=1 writes what is found, to be
// checked by hand.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "comm/topology/bandwidth.h"
#include "comm/topology/readers.h"

namespace muster::comm::topology {
namespace {

namespace fs = std::filesystem;

std::string folder() {
  if (const char* named = std::getenv("MUSTER_TOPOLOGY_DIR")) return named;
  const char* data = std::getenv("MUSTER_DATA_DIR");
  return data ? std::string(data) + "/topology" : "";
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class TopologyFiles : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::is_directory(folder()))
      GTEST_SKIP() << "no folder of saved machines; set MUSTER_TOPOLOGY_DIR (found '" << folder() << "')";
    for (const auto& entry : fs::directory_iterator(folder())) files_.push_back(entry.path());
    std::sort(files_.begin(), files_.end());
  }
  static Graph read(const fs::path& file) { return read_any(contents(file), file.filename()); }
  static BandwidthTable bandwidth(const char* file) { return estimate_first_gpus(read(fs::path(folder()) / file)); }

  std::vector<fs::path> files_;
};

fs::path expected(const fs::path& file) { return fs::path(MUSTER_EXPECTED) / (file.filename().string() + ".graph.txt"); }

TEST_F(TopologyFiles, ParseToTheExpectedGraph) {
  for (const auto& file : files_) {
    const std::string found = to_text(read(file));
    if (std::getenv("MUSTER_WRITE_EXPECTED")) std::ofstream(expected(file)) << found;
    EXPECT_EQ(found, contents(expected(file))) << file;
  }
}

TEST_F(TopologyFiles, EveryExpectedGraphHasItsFile) {
  for (const auto& entry : fs::directory_iterator(MUSTER_EXPECTED)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(fs::exists(fs::path(folder()) / name.substr(0, name.size() - std::string(".graph.txt").size()))) << name;
  }
}

TEST_F(TopologyFiles, MatricesAreSymmetric) {
  for (const auto& file : files_) {
    const Graph graph = read(file);
    std::vector<Device> devices;
    for (const auto& g : graph.gpus) devices.push_back(gpu(g.index));
    for (const auto& n : graph.nics) devices.push_back(nic(n.index));
    for (const auto& a : devices)
      for (const auto& b : devices) {
        EXPECT_EQ(graph.cell(a, b), graph.cell(b, a)) << file;
        EXPECT_EQ(graph.cell(a, b) == "X", a == b) << file;
      }
  }
}

TEST_F(TopologyFiles, GpusOfOneMachineHaveEquallyManyLinks) {
  for (const auto& file : files_) {
    const Graph graph = read(file);
    std::map<int, int> links;
    for (const auto& g : graph.gpus) links[g.index] = 0;
    for (const auto& link : graph.links)
      for (const Device end : {link.a, link.b})
        if (end.kind == DeviceKind::kGpu) links[end.index] += link.count;
    const bool cut = file.filename() == "topo-m.dgx2-16xV100-partial.txt";  // 4 of 16 rows
    for (const auto& [g, count] : links) EXPECT_TRUE(cut || count == links.begin()->second) << file << " GPU" << g;
  }
}

// Our own matrix of a machine reads back as the same one.
TEST_F(TopologyFiles, PrintedMatricesReadBack) {
  for (const auto& file : files_) {
    const Graph graph = read(file);
    if (graph.gpus.size() < 2 || graph.paths.empty() || to_matrix(graph).find("\t?") != std::string::npos) continue;
    if (to_matrix(graph).find("XGMI") != std::string::npos) continue;  // not a word of nvidia-smi
    const Graph again = read_any(to_matrix(graph), "printed");
    EXPECT_EQ(to_matrix(again), to_matrix(graph)) << file;
  }
}

// All-reduce on the hybrid cube mesh, measured with NCCL over the first 2..8 GPUs (GB/s of bus bandwidth). Not monotone.
TEST_F(TopologyFiles, HybridCubeMeshGivesItsBandwidthCurve) {
  const double measured[] = {22.6, 45.2, 85.8, 37.1, 45.9, 87.5, 135.9};
  const auto table = bandwidth("topo-m.dgx1-8xV100.txt");
  ASSERT_EQ(table.rows.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(table.rows[i].bus_gbytes_per_s / measured[i], 1, 0.06) << i + 2 << " GPUs";
}

TEST_F(TopologyFiles, SwitchesGiveTheSameAtEveryNumberOfGpus) {
  const auto table = bandwidth("topo-m.dgx-a100.txt");
  ASSERT_EQ(table.rows.size(), 7u);
  for (const auto& row : table.rows) EXPECT_EQ(row.channels, 12);
}

}  // namespace
}  // namespace muster::comm::topology
