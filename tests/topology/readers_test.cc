// What each reader makes of small machines written by hand, right and wrong ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "comm/topology/readers.h"
#include "tests/topology/inputs.h"

namespace muster::comm::topology {
namespace {

using testing::HasSubstr;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// All findings, a line each.
std::string findings(const Graph& graph) {
  std::string out;
  for (const auto& finding : graph.findings) out += finding.text() + "\n";
  return out;
}

std::string refusal(const std::string& text) {
  try {
    read_any(text, "saved");
  } catch (const InputError& error) {
    return error.what();
  }
  return "read";
}

TEST(TopoMatrix, ReadsCellsAffinitiesAndLegend) {
  const Graph graph = read_any(kMatrix, "saved");
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV4");
  EXPECT_EQ(graph.cell(gpu(1), nic(0)), "PXB");
  EXPECT_EQ(graph.cell(nic(0), nic(1)), "NODE");
  EXPECT_EQ(*graph.gpus[0].cpus, "0-3,8");
  EXPECT_EQ(*graph.gpus[2].numa, 1);
  EXPECT_EQ(*graph.nics[1].name, "mlx5_1");
  EXPECT_EQ(findings(graph), "GPU2: found 0 links to other GPUs and switches; wanted 4, as GPU0 has\n");
}

TEST(TopoMatrix, BlanksRunTogetherNamesAndOldDrivers) {
  const Graph graph = read_any(
      "$ nvidia-smi topo -m\n\n        GPU0    GPU1    NIC11NIC12   CPU Affinity\r\n"
      "GPU0     X      SOC     PIX     PHB     0-3\r\nGPU1    SOC      X      PHB     NODE    4-7\r\n"
      "NIC11   PIX     PHB      X      SYS\r\nNIC12   PHB     NODE    SYS      X",
      "saved");
  EXPECT_EQ(graph.nics.size(), 2u);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "SYS");
  EXPECT_EQ(graph.cell(gpu(1), nic(1)), "NODE");
  EXPECT_EQ(*graph.gpus[1].cpus, "4-7");
  EXPECT_EQ(findings(graph), "");
}

TEST(TopoMatrix, EmptyAffinityLeavesTheOthersInPlace) {
  const Graph graph = read_any(
      "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPIX\t\t1\t\tN/A\nGPU1\tPIX\t X \t\tN/A\t\tN/A\n",
      "saved");
  EXPECT_FALSE(graph.gpus[0].cpus);
  EXPECT_EQ(*graph.gpus[0].numa, 1);
  EXPECT_FALSE(graph.gpus[1].numa);
}

TEST(TopoMatrix, MoreLinksThanAGpuHasEndInSwitches) {
  const Graph graph =
      read_any("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV18\t X \tNV18\nGPU2\tNV18\tNV18\t X \n", "saved");
  EXPECT_EQ(graph.switches.size(), 1u);
  EXPECT_EQ(graph.switch_links(2), 18);
  EXPECT_EQ(graph.cell(gpu(0), gpu(2)), "NV18");
  EXPECT_EQ(findings(graph), "");
}

TEST(TopoMatrix, WrongLinesAreFindings) {
  const std::pair<const char*, const char*> cases[] = {
      {"GPU0\t X \tNV4\tSYS\tPIX", "GPU0\t X \tNV5\tSYS\tPIX"},            // the other row says 4
      {"GPU0\t X \tNV4", "GPU0\tNV4\tNV4"},                                // no X on the diagonal
      {"GPU0\t X \tNV4\tSYS\tPIX\tNODE\t", "GPU0\t X \tNV4\tSYS\tPIX\t"},  // a cell less
      {"GPU2\tSYS\tPHB", "GPU2\tSYS\tCABLE"},                              // no such class
      {"GPU2\tSYS\tPHB", "GPU7\tSYS\tPHB"},                                // not in the header
      {"0-3,8\t0", "8-3\t0"},                                              // no CPU list
      {"NIC0\tPIX", "NIC1\tPIX"},                                          // a row twice
      {"NODE\t0-3,8\t0\t\tN/A", "NODE\t0-3,8\t0\t\tN/A\tmore"},
  };
  const char* wanted[] = {"saved:3: found NV4 at GPU1-GPU0; wanted NV5",
                          "saved:2: found 'NV4' at GPU0-GPU0",
                          "saved:2: found 4 cells in row GPU0; wanted 5",
                          "saved:4: found cell 'CABLE'",
                          "saved:4: found row 'GPU7'",
                          "saved:2: found CPU affinity '8-3'",
                          "saved:6: found row 'NIC1' a second time",
                          "saved:2: found 4 words after the cells; wanted 3 at most"};
  for (size_t i = 0; i < std::size(cases); ++i)
    EXPECT_THAT(findings(read_any(replaced(kMatrix, cases[i].first, cases[i].second), "saved")), HasSubstr(wanted[i]));
}

TEST(TopoMatrix, MissingRowsAreAFinding) {
  const std::string cut = std::string(kMatrix).substr(0, std::string(kMatrix).find("NIC0\tPIX"));
  EXPECT_THAT(findings(read_any(cut, "saved")), HasSubstr("saved:1: found no row for NIC0 NIC1; wanted a row for each column"));
}

TEST(P2pMatrix, ReadsBothDirections) {
  const Graph graph = read_any(kP2p, "saved");
  EXPECT_EQ(*graph.p2p.at({0, 1}), "OK");
  EXPECT_EQ(findings(graph), "saved: found P2P OK from GPU0 to GPU1 and GNS back; wanted the same both ways\n");
}

TEST(SmiList, ReadsGpusAndMigDevices) {
  const Graph graph = read_any(kList, "saved");
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(*graph.gpus[0].model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(graph.gpus[0].slices.at(1).profile, "2g.20gb");
  EXPECT_FALSE(graph.gpus[1].mig);
  EXPECT_THAT(findings(read_any(replaced(kList, "GPU 1:", "GPU 0:"), "saved")), HasSubstr("saved:4: found 'GPU 0: "));
  EXPECT_THAT(findings(read_any(replaced(kList, "555555555555)\n  MIG 2g", "555555555555\n  MIG 2g"), "saved")),
              HasSubstr("saved:2:"));
}

TEST(SmiXml, ReadsGpusAndTheirTroubles) {
  const Graph graph = read_any(kSmiXml, "saved");
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(*graph.gpus[0].bus_id, "0000:53:00.0");
  EXPECT_EQ(*graph.gpus[0].module, 7);
  EXPECT_EQ(*graph.gpus[0].pcie_generation, 5);
  EXPECT_TRUE(*graph.gpus[0].mig);
  EXPECT_EQ(graph.gpus[0].slices.at(0).uuid, "MIG-1");
  EXPECT_FALSE(graph.gpus[1].fabric);
  EXPECT_EQ(findings(graph),
            "GPU0: found a PCIe link 8 lanes wide; wanted 16 lanes\n"
            "GPU0: found NVLink fabric state In Progress; wanted Completed; is the fabric manager (or IMEX) running?\n");
  const std::pair<const char*, const char*> wrong[] = {{"<attached_gpus>2", "<attached_gpus>3"},
                                                       {"GPU-2", "GPU-1"},
                                                       {"id=\"00000000:64:00.0\"", "id=\"64\""},
                                                       {">16x<", ">wide<"}};
  const char* wanted[] = {"saved: found 2 <gpu> elements; wanted 3", "saved:21: found UUID GPU-1 a second time",
                          "saved:21: found <gpu> id='64'", "found <max_link_width> 'wide'"};
  for (size_t i = 0; i < std::size(wrong); ++i)
    EXPECT_THAT(findings(read_any(replaced(kSmiXml, wrong[i].first, wrong[i].second), "saved")), HasSubstr(wanted[i]));
}

TEST(NcclXml, ReadsTreeLinksAndNics) {
  const Graph graph = read_any(kNccl, "saved");
  ASSERT_EQ(graph.gpus.size(), 3u);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV4");
  EXPECT_EQ(*graph.paths.at({gpu(0), gpu(1)}), PathClass::kPix);
  EXPECT_EQ(graph.switch_links(0), 2);
  EXPECT_EQ(graph.cell(gpu(0), gpu(2)), "SYS");
  EXPECT_EQ(graph.cell(gpu(0), nic(2)), "PHB");
  EXPECT_EQ(graph.cell(nic(0), nic(1)), "PIX");
  EXPECT_EQ(*graph.nics[1].name, "mlx5_1");
  EXPECT_EQ(*graph.gpus[0].cpus, "0-15,32-39");
  EXPECT_EQ(*graph.gpus[1].pcie_width, 8);
  EXPECT_EQ(*graph.gpus[2].pcie_generation, 3);
  EXPECT_EQ(*graph.gpus[0].compute_capability, 80);
  EXPECT_EQ(graph.links.size(), 4u);
  EXPECT_EQ(*graph.links[0].gbytes_per_s, 64);
  EXPECT_THAT(findings(graph), HasSubstr("GPU2: found 0 links to other GPUs and switches; wanted 6, as GPU0 has\n"));
}

TEST(NcclXml, WrongElementsAreFindings) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"busid=\"0000:13:00.0\"", "busid=\"0000:12:00.0\"", "saved:18: found busid='0000:12:00.0' a second time"},
      {"busid=\"0000:13:00.0\"", "busid=\"13\"", "saved:18: found busid='13'"},
      {"target=\"0000:11:00.0\" count=\"4\"", "target=\"0000:11:00.0\" count=\"3\"",
       "GPU0-GPU1: found NV3 (NCCL topology XML); wanted NV4"},
      {"target=\"0000:11:00.0\"", "target=\"0000:99:00.0\"",
       "saved:14: found a link to '0000:99:00.0'; wanted a GPU or NVSwitch"},
      {"target=\"0000:11:00.0\"", "target=\"0000:99:00.0\"", "saved: found GPU0-GPU1 linked from one side only"},
      {"target=\"0000:12:00.0\"", "target=\"0000:11:00.0\"", "saved:7: found a link of GPU0 to itself"},
      {"target=\"0000:11:00.0\" count=\"4\"", "target=\"0000:11:00.0\" count=\"four\"", "saved:14: found count='four'"},
      {"numaid=\"1\"", "numaid=\"0\"", "saved:27: found numaid=0 a second time"},
      {"affinity=\"000000ff,0000ffff\"", "affinity=\"ff,green\"", "saved:3: found affinity='ff,green'"},
      {"affinity=\"0000ff00,ffff0000\"", "affinity=\"0000ff00,ffff000\"",
       "saved:27: found the affinity word 'ffff000'; wanted 8 digits"},
      {"<gpu dev=\"2\"", "<gpu dev=\"1\"", "saved: found dev=1 a second time"},
      {"<nic>\n          <net", "<gpu dev=\"3\"/><gpu/><nic>\n          <net",
       "saved:19: found a second device at '0000:13:00.0'; wanted one"},
      {"<nic><net", "<gpu/><nic><net", "saved:25: found <gpu> outside <pci>"},
      {"<nic><net", "<nic><gnat/><net", "saved:25: found <gnat>; wanted <net>"},
  };
  for (const auto& [from, to, wanted] : cases)
    EXPECT_THAT(findings(read_any(replaced(kNccl, from, to), "saved")), HasSubstr(wanted));
}

TEST(NcclXml, AGpuThatIsRefusedChangesNoOther) {
  const Graph graph = read_any(
      "<system><cpu numaid=\"0\"><pci busid=\"0:1:0.0\" class=\"0x0200\"><nic><net/></nic><gpu gcn=\"906\">"
      "<nvlink target=\"0000:02:00.0\" count=\"1\"/></gpu></pci></cpu></system>",
      "saved");
  EXPECT_TRUE(graph.gpus.empty());
  EXPECT_THAT(findings(graph), HasSubstr("saved:1: found a second device"));
}

TEST(NcclGraphXml, ReadsChannels) {
  const Graph graph = read_any(kNcclGraph, "saved");
  ASSERT_EQ(graph.channels.size(), 2u);
  EXPECT_EQ(graph.channels[0], (Channel{"ring", {0, 1}, 12.5}));
  EXPECT_EQ(graph.channels[1].pattern, "balanced tree");
  EXPECT_THAT(findings(read_any(replaced(kNcclGraph, "<gpu dev=\"1\"/>", "<gpu dev=\"x\"/>"), "saved")),
              HasSubstr("saved:3: found <gpu> dev='x'"));
}

TEST(HwlocXml, ReadsTreeAndBandwidthMatrix) {
  const Graph graph = read_any(kHwloc, "saved");
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV2");
  EXPECT_EQ(*graph.paths.at({gpu(0), gpu(1)}), PathClass::kSys);
  EXPECT_EQ(graph.switch_links(1), 1);
  EXPECT_EQ(graph.cell(gpu(0), nic(0)), "PIX");
  EXPECT_EQ(*graph.nics[0].name, "mlx5_0");
  EXPECT_EQ(*graph.nics[0].interface, "ib0");
  EXPECT_EQ(*graph.gpus[1].numa, 1);
  EXPECT_EQ(*graph.gpus[0].cpus, "0-1");
  EXPECT_EQ(graph.pci[0].bus_id, "pci0000:10");
  EXPECT_EQ(findings(graph), "");
}

TEST(HwlocXml, WrongMatricesAreFindings) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"0 50000 25000 50000 0", "0 50000 25000 25000 0", "saved:40: found 50000 MB/s GPU0-GPU1 and 25000 back"},
      {"0 50000 25000 50000 0", "0 50000 25000 50000", "saved:40: found 8 values for 3 devices"},
      {"OSDev:13 PCIDev", "OSDev:99 PCIDev", "saved:40: found index 'OSDev:99'"},
      {"0 50000 25000 50000 0", "0 12345 25000 12345 0", "saved:40: found 12345 MB/s GPU0-GPU1; wanted a multiple"},
      {"type=\"NUMANode\" os_index=\"1\"", "type=\"NUMANode\" os_index=\"one\"", "saved:31: found NUMANode os_index='one'"},
      {"pci_busid=\"0000:81:00.0\"", "pci_busid=\"nowhere\"", "found pci_busid='nowhere'"},
  };
  for (const auto& [from, to, wanted] : cases)
    EXPECT_THAT(findings(read_any(replaced(kHwloc, from, to), "saved")), HasSubstr(wanted));
}

TEST(HwlocXml, VersionTwoCountsDeviceTypesDifferently) {
  std::string text = replaced(kHwloc, "version=\"3.0\"", "version=\"2.0\"");
  text = replaced(replaced(text, "name=\"ib0\" osdev_type=\"16\"", "name=\"ib0\" osdev_type=\"2\""), "osdev_type=\"32\"",
                  "osdev_type=\"3\"");
  EXPECT_EQ(*read_any(text, "saved").nics.at(0).name, "mlx5_0");
  EXPECT_THAT(refusal(replaced(kHwloc, "version=\"3.0\"", "version=\"1.11\"")),
              HasSubstr("saved:3: found version '1.11'; wanted hwloc 2 or 3"));
}

TEST(ReadAny, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(refusal("once upon a time"), HasSubstr("saved: found none of the kinds known"));
  EXPECT_THAT(refusal(""), HasSubstr("saved: found none of the kinds known"));
  EXPECT_THAT(refusal("<html></html>"), HasSubstr("saved:1: found <html>; wanted <system> (NCCL)"));
  EXPECT_THROW(read_file("/nowhere/machine"), InputError);
  EXPECT_THROW(read_file("/"), InputError);
}

TEST(Merge, JoinsByUuidAndKeepsBothSidesOfADisagreement) {
  Graph graph = read_smi_xml(kSmiXml, "xml");
  graph.findings.clear();
  Graph other;
  other.gpus.resize(2);
  other.gpus[0].index = 0;
  other.gpus[0].uuid = {"GPU-2", Source::kNvml};
  other.gpus[0].pcie_generation = {4, Source::kNvml};
  other.gpus[1].index = 1;
  other.gpus[1].uuid = {"GPU-1", Source::kNvml};
  other.gpus[1].pcie_generation = {4, Source::kNvml};
  other.add_path(gpu(0), gpu(1), PathClass::kSys, Source::kNvml);
  merge(graph, other);
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(*graph.gpus[1].pcie_generation, 4);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "SYS");
  EXPECT_EQ(findings(graph), "GPU0: found PCIe generation 4 (NVML); wanted 5 (nvidia-smi -q -x)\n");
}

TEST(Merge, MatrixAndListAreOneMachine) {
  Graph graph = read_topo_matrix(kMatrix, "matrix");
  merge(graph, read_smi_list(kList, "list"));
  EXPECT_EQ(graph.gpus.size(), 3u);
  EXPECT_EQ(*graph.gpus[1].uuid, "GPU-22222222-2222-3333-4444-555555555555");
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV4");
}

}  // namespace
}  // namespace muster::comm::topology
