#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/topology/bandwidth.h"

namespace muster::comm::topology {
namespace {

using testing::HasSubstr;
using Capacity = std::vector<std::vector<int>>;

Capacity full_mesh(int nodes, int links) {
  Capacity out(nodes, std::vector<int>(nodes, links));
  for (int i = 0; i < nodes; ++i) out[i][i] = 0;
  return out;
}

Graph machine(int gpus) {
  Graph graph;
  for (int i = 0; i < gpus; ++i) {
    Gpu g;
    g.index = i;
    graph.gpus.push_back(g);
  }
  return graph;
}

void link(Graph& graph, int a, int b, int count) {
  graph.add_link({gpu(a), gpu(b), LinkKind::kNvLink, count, {}, {}, Source::kNvml});
}

TEST(Packing, RingsInBothDirections) {
  EXPECT_EQ(pack_rings(full_mesh(2, 3)), 3);
  EXPECT_EQ(pack_rings(full_mesh(3, 1)), 2);
  EXPECT_EQ(pack_rings(full_mesh(4, 6)), 18);
  EXPECT_EQ(pack_rings(full_mesh(5, 1)), 4);
  EXPECT_EQ(pack_rings(full_mesh(1, 1)), 0);
}

// The complete directed graph of four nodes has no two disjoint rings beside each other that use all of it (nor has that of six).
TEST(Packing, FourNodesWithOneLinkEachGiveTwoRings) { EXPECT_EQ(pack_rings(full_mesh(4, 1)), 2); }

TEST(Packing, APathHasNoRingButAChain) {
  Capacity path(4, std::vector<int>(4));
  for (int i = 0; i < 3; ++i) path[i][i + 1] = path[i + 1][i] = 2;
  EXPECT_EQ(pack_rings(path), 0);
  EXPECT_EQ(pack_chains(path), 2);
  path[0][1] = path[1][0] = 0;
  EXPECT_EQ(pack_chains(path), 0);
}

// One link between two halves that have plenty: it carries one ring each way, or one chain.
TEST(Packing, TheNarrowestLinkDecides) {
  Capacity ring(4, std::vector<int>(4));
  for (int i = 0; i < 4; ++i) ring[i][(i + 1) % 4] = ring[(i + 1) % 4][i] = 2;
  ring[3][0] = ring[0][3] = 1;
  EXPECT_EQ(pack_rings(ring), 2);
  Capacity halves(4, std::vector<int>(4));
  halves[0][1] = halves[1][0] = halves[2][3] = halves[3][2] = 3;
  halves[1][2] = halves[2][1] = 1;
  EXPECT_EQ(pack_chains(halves), 1);
}

TEST(Packing, ChainsShareAMesh) {
  EXPECT_EQ(pack_chains(full_mesh(4, 1)), 2);
  EXPECT_EQ(pack_chains(full_mesh(3, 2)), 3);
}

TEST(Bandwidth, DirectLinksBySmVersion) {
  Graph graph = machine(2);
  link(graph, 0, 1, 4);
  graph.gpus[0].compute_capability = {80, Source::kNvml};
  EXPECT_DOUBLE_EQ(estimate_all_reduce(graph, {0, 1}).bus_gbytes_per_s, 80);
  graph.links[0].generation = {4, Source::kNvml};
  EXPECT_DOUBLE_EQ(estimate_all_reduce(graph, {0, 1}).bus_gbytes_per_s, 4 * 20.6);
}

TEST(Bandwidth, TheGpuWithFewestSwitchLinksDecides) {
  Graph graph = machine(3);
  for (int i = 0; i < 3; ++i) graph.add_link({gpu(i), nvswitch(0), LinkKind::kNvLink, i == 1 ? 9 : 18, {}, {}, Source::kNvml});
  EXPECT_EQ(estimate_all_reduce(graph, {0, 2}).channels, 18);
  EXPECT_EQ(estimate_all_reduce(graph, {0, 1, 2}).channels, 9);
}

TEST(Bandwidth, AGpuOnOneLinkTurnsRingsIntoATree) {
  Graph graph = machine(3);
  link(graph, 0, 1, 2);
  link(graph, 1, 2, 2);
  graph.gpus[0].compute_capability = {70, Source::kNvml};
  const auto estimate = estimate_all_reduce(graph, {0, 1, 2});
  EXPECT_THAT(estimate.how, HasSubstr("2 trees over NVLink"));
  EXPECT_NEAR(estimate.bus_gbytes_per_s, 2 * 22.6 * 2 / 3, 1e-9);
}

TEST(Bandwidth, PcieBySlotAndPath) {
  Graph graph = machine(3);
  for (auto& g : graph.gpus) g.pcie_generation = {4, Source::kSysfs}, g.pcie_width = {16, Source::kSysfs};
  graph.add_path(gpu(0), gpu(1), PathClass::kPix, Source::kSysfs);
  EXPECT_DOUBLE_EQ(estimate_all_reduce(graph, {0, 1}).bus_gbytes_per_s, 24);
  EXPECT_EQ(estimate_all_reduce(graph, {0, 1, 2}).channels, 0);  // no path to the third is known
  graph.add_path(gpu(0), gpu(2), PathClass::kSys, Source::kSysfs);
  graph.add_path(gpu(1), gpu(2), PathClass::kSys, Source::kSysfs);
  EXPECT_DOUBLE_EQ(estimate_all_reduce(graph, {0, 1, 2}).bus_gbytes_per_s, 10);
  graph.gpus[1].pcie_width = {4, Source::kSysfs};
  EXPECT_DOUBLE_EQ(estimate_all_reduce(graph, {0, 1}).bus_gbytes_per_s, 6);
}

TEST(Bandwidth, SaysWhatItDoesNotKnow) {
  EXPECT_THAT(to_text(estimate_first_gpus(machine(1))), HasSubstr("fewer than 2 GPUs"));
  const auto text = to_text(estimate_first_gpus(machine(2)));
  EXPECT_THAT(text, HasSubstr("   2       ?  the graph tells no path"));
  EXPECT_THAT(text, HasSubstr("no source names an NVLink"));
}

}  // namespace
}  // namespace muster::comm::topology
