// The live readers, on machines made of folders and of a library that lies as told.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/topology/live.h"

namespace muster::comm::topology {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class LiveTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override {
    fs::remove_all(root_);
    unsetenv("FAKE_NVML");
  }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }

  // A PCI function at the end of `chain` below sys/devices.
  void pci(const std::string& chain, const std::string& code, const std::string& vendor, const std::string& numa) {
    const std::string folder = "sys/devices/" + chain + "/";
    write(folder + "class", code);
    write(folder + "vendor", vendor);
    write(folder + "numa_node", numa);
    fs::create_directories(root_ / "sys/bus/pci/devices");
    fs::create_symlink("../../../devices/" + chain, root_ / "sys/bus/pci/devices" / fs::path(chain).filename());
  }

  void bridge(const std::string& chain) { pci(chain, "0x060400", "0x8086", "0"); }

  void device_of(const std::string& entry, const std::string& chain) {
    fs::create_directories(root_ / "sys/class" / entry);
    fs::create_symlink("../../../devices/" + chain, root_ / "sys/class" / entry / "device");
  }

  // Two GPUs and a dual-port NIC under one switch of one root port, a GPU of another root port, one of another host bridge of the
  // same node, one of the other node.
  void build_machine() {
    write("sys/devices/system/node/node0/cpulist", "0-63");
    write("sys/devices/system/node/node1/cpulist", "64-127");
    write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       2048 kB");
    for (const char* b : {"0000:00:01.0", "0000:00:01.0/0000:01:00.0", "0000:00:01.0/0000:01:00.0/0000:02:00.0",
                          "0000:00:01.0/0000:01:00.0/0000:02:01.0", "0000:00:01.0/0000:01:00.0/0000:02:02.0", "0000:00:02.0"})
      bridge(std::string("pci0000:00/") + b);
    const std::string in_switch = "pci0000:00/0000:00:01.0/0000:01:00.0/";
    pci(in_switch + "0000:02:00.0/0000:03:00.0", "0x030200", "0x10de", "0");
    pci(in_switch + "0000:02:01.0/0000:04:00.0", "0x030200", "0x10de", "0");
    pci(in_switch + "0000:02:02.0/0000:05:00.0", "0x020700", "0x15b3", "0");
    pci(in_switch + "0000:02:02.0/0000:05:00.1", "0x020700", "0x15b3", "0");
    pci("pci0000:00/0000:00:02.0/0000:06:00.0", "0x030200", "0x10de", "0");
    pci("pci0000:40/0000:41:00.0", "0x030200", "0x10de", "0");
    pci("pci0000:80/0000:81:00.0", "0x030000", "0x10de", "1");
    pci("pci0000:80/0000:82:00.0", "0x068000", "0x10de", "1");
    pci("pci0000:80/0000:83:00.0", "0x030000", "0x1a03", "1");  // a server's own screen
    device_of("infiniband/mlx5_10", in_switch + "0000:02:02.0/0000:05:00.1");
    device_of("infiniband/mlx5_9", in_switch + "0000:02:02.0/0000:05:00.0");
    device_of("net/ib0", in_switch + "0000:02:02.0/0000:05:00.0");
    write("sys/class/infiniband/mlx5_9/ports/1/state", "4: ACTIVE");
    write("sys/class/infiniband/mlx5_9/ports/1/rate", "100 Gb/sec (4X EDR)");
    write("sys/class/net/lo/operstate", "unknown");
  }

  const fs::path root_ = fs::temp_directory_path() / ("muster-live-test-" + std::to_string(getpid()));
};

TEST_F(LiveTest, SysfsTellsEveryPathClass) {
  build_machine();
  const Graph graph = read_sysfs(root_);
  ASSERT_EQ(graph.gpus.size(), 5u);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "PIX");
  EXPECT_EQ(graph.cell(gpu(0), nic(0)), "PIX");
  EXPECT_EQ(graph.cell(gpu(0), gpu(2)), "PHB");
  EXPECT_EQ(graph.cell(gpu(0), gpu(3)), "NODE");
  EXPECT_EQ(graph.cell(gpu(0), gpu(4)), "SYS");
  EXPECT_TRUE(graph.findings.empty()) << graph.findings[0].text();
}

TEST_F(LiveTest, TwoSwitchesInARowArePxb) {
  const std::string outer = "pci0000:00/0000:00:01.0/0000:01:00.0/";
  const std::string inner = outer + "0000:02:00.0/0000:03:00.0/";
  for (const auto& b :
       {std::string("pci0000:00/0000:00:01.0"), std::string("pci0000:00/0000:00:01.0/0000:01:00.0"), outer + "0000:02:00.0",
        outer + "0000:02:01.0", outer + "0000:02:00.0/0000:03:00.0", inner + "0000:04:00.0"})
    bridge(b);
  pci(inner + "0000:04:00.0/0000:05:00.0", "0x030200", "0x10de", "0");
  pci(outer + "0000:02:01.0/0000:06:00.0", "0x030200", "0x10de", "0");
  EXPECT_EQ(read_sysfs(root_).cell(gpu(0), gpu(1)), "PXB");
}

TEST_F(LiveTest, SysfsNicsComeAsNvidiaSmiNumbersThem) {
  build_machine();
  const Graph graph = read_sysfs(root_);
  ASSERT_EQ(graph.nics.size(), 2u);
  EXPECT_EQ(*graph.nics[0].name, "mlx5_9");
  EXPECT_EQ(*graph.nics[0].interface, "ib0");
  EXPECT_EQ(*graph.nics[0].state, "ACTIVE");
  EXPECT_EQ(*graph.nics[0].mbits_per_s, 100000);
  EXPECT_EQ(*graph.nics[1].name, "mlx5_10");
  EXPECT_EQ(graph.cell(nic(0), nic(1)), "PIX");
  EXPECT_THAT(to_matrix(graph), HasSubstr("GPU4\tNIC0\tNIC1\tCPU"));
  EXPECT_EQ(graph.switches.size(), 1u);
  EXPECT_EQ(*graph.numa_nodes[0].memory_bytes, 2048 * 1024);
}

// nvidia-smi shows no NIC without RDMA; the tree does.
TEST_F(LiveTest, PlainNicsStayOutOfTheMatrix) {
  pci("pci0000:00/0000:00:01.0", "0x030200", "0x10de", "0");
  pci("pci0000:00/0000:00:02.0", "0x020000", "0x1af4", "0");
  device_of("net/eth0", "pci0000:00/0000:00:02.0");
  const Graph graph = read_sysfs(root_);
  ASSERT_EQ(graph.nics.size(), 1u);
  EXPECT_EQ(graph.cell(gpu(0), nic(0)), "PHB");
  EXPECT_THAT(to_matrix(graph), Not(HasSubstr("NIC0")));
  EXPECT_THAT(to_tree(graph), HasSubstr("NIC0 eth0"));
}

TEST_F(LiveTest, SysfsSlotsLimitGpusAndNarrowLinksAreFindings) {
  bridge("pci0000:00/0000:00:01.0");
  pci("pci0000:00/0000:00:01.0/0000:01:00.0", "0x030200", "0x10de", "-1");
  const std::string slot = "sys/devices/pci0000:00/0000:00:01.0/", device = slot + "0000:01:00.0/";
  write(slot + "max_link_speed", "16.0 GT/s PCIe");
  write(slot + "max_link_width", "16");
  write(device + "max_link_speed", "32.0 GT/s PCIe");
  write(device + "max_link_width", "16");
  write(device + "current_link_width", "4");
  const Graph graph = read_sysfs(root_);
  EXPECT_EQ(*graph.gpus[0].pcie_generation, 4);
  EXPECT_FALSE(graph.gpus[0].numa);
  ASSERT_EQ(graph.findings.size(), 1u);
  EXPECT_EQ(graph.findings[0].text(), "GPU0: found a PCIe link 4 lanes wide; wanted 16 lanes");
}

TEST_F(LiveTest, OneNumaNodeIsEverybodysNode) {
  write("sys/devices/system/node/node0/cpulist", "0-3");
  pci("pci0000:00/0000:00:01.0", "0x030200", "0x10de", "-1");
  pci("pci0000:10/0000:10:01.0", "0x030200", "0x10de", "-1");
  const Graph graph = read_sysfs(root_);
  EXPECT_EQ(*graph.gpus[0].numa, 0);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NODE");
}

TEST_F(LiveTest, BrokenSysfsIsAFinding) {
  build_machine();
  write("sys/devices/system/node/node1/cpulist", "64-");
  write("sys/bus/pci/devices/strange", "");
  fs::create_symlink("nowhere", root_ / "sys/bus/pci/devices/0000:99:00.0");
  const Graph graph = read_sysfs(root_);
  ASSERT_EQ(graph.findings.size(), 3u);
  EXPECT_THAT(graph.findings[0].text(), HasSubstr("node1/cpulist: found '64-'"));
  EXPECT_THAT(graph.findings[1].text(), HasSubstr("0000:99:00.0: found no place in the PCIe tree"));
  EXPECT_THAT(graph.findings[2].text(), HasSubstr("found 'strange'"));
}

TEST_F(LiveTest, AnEmptyRootIsAnEmptyMachine) { EXPECT_EQ(read_sysfs(root_), Graph{}); }

class NvmlTest : public LiveTest {
 protected:
  Graph read(const std::string& machine) {
    load(machine);
    return read_nvml(MUSTER_FAKE_NVML);
  }
  void load(const std::string& machine) {
    write("nvml", machine);
    setenv("FAKE_NVML", (root_ / "nvml").c_str(), 1);
  }
};

TEST_F(NvmlTest, NoLibraryIsAnEmptyGraph) { EXPECT_EQ(read_nvml("/nowhere/libnvml.so"), Graph{}); }

TEST_F(NvmlTest, ALibraryThatDoesNotStartIsAFinding) {
  const Graph graph = read_nvml(MUSTER_FAKE_NVML);
  ASSERT_EQ(graph.findings.size(), 1u);
  EXPECT_THAT(graph.findings[0].text(), HasSubstr("does not start"));
}

TEST_F(NvmlTest, DirectLinksAreCountedAPair) {
  const Graph graph = read(
      "gpu GPU-a 0 3 70 0 -1 -1\ngpu GPU-b 0 4 70 1 -1 -1\n"
      "link 0 0 gpu 1 2\nlink 0 3 gpu 1 2\nlink 0 4 down 1 2\nlink 1 0 gpu 0 2\nlink 1 5 gpu 0 2\n"
      "path 0 1 50\npath 1 0 50\np2p 0 1 0\np2p 1 0 2\n");
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(*graph.gpus[1].bus_id, "0000:04:00.0");
  EXPECT_EQ(*graph.gpus[1].cpus, "64-71");
  EXPECT_EQ(*graph.gpus[1].numa, 1);
  EXPECT_EQ(*graph.gpus[0].compute_capability, 70);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV2");
  EXPECT_EQ(*graph.links[0].generation, 2);
  EXPECT_EQ(*graph.paths.at({gpu(0), gpu(1)}), PathClass::kSys);
  EXPECT_EQ(*graph.p2p.at({0, 1}), "OK");
  EXPECT_EQ(*graph.p2p.at({1, 0}), "GNS");
  EXPECT_TRUE(graph.findings.empty());
}

TEST_F(NvmlTest, SwitchesMakeACliqueAndAMissingLinkIsAFinding) {
  const Graph graph = read(
      "gpu GPU-a 0 3 90 0 -1 3\ngpu GPU-b 0 4 90 0 -1 3\ngpu GPU-c 0 5 90 0 -1 2\n"
      "link 0 0 switch 96 6\nlink 0 1 switch 97 6\nlink 1 0 switch 96 6\nlink 1 1 switch 97 6\nlink 2 0 switch 96 6\n");
  EXPECT_EQ(graph.switches.size(), 2u);
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "NV2");
  EXPECT_EQ(graph.cell(gpu(0), gpu(2)), "NV1");
  EXPECT_EQ(*graph.links[0].generation, 4);
  EXPECT_EQ(*graph.gpus[0].fabric, "Completed");
  EXPECT_EQ(*graph.gpus[0].fabric_clique, 5);
  ASSERT_EQ(graph.findings.size(), 2u);
  EXPECT_EQ(graph.findings[0].text(), "GPU2: found 1 links to other GPUs and switches; wanted 2, as GPU0 has");
  EXPECT_THAT(graph.findings[1].text(), HasSubstr("fabric state In Progress"));
}

TEST_F(NvmlTest, LinksToTheOwnCpu) {
  const Graph graph = read("gpu GPU-a 0 3 90 1 -1 -1\ngpu GPU-b 0 4 90 0 -1 -1\nc2c 0 5 4 45000\nc2c 1 5 5 45000\n");
  ASSERT_EQ(graph.links.size(), 2u);
  EXPECT_EQ(graph.links[0].kind, LinkKind::kC2c);
  EXPECT_EQ(graph.links[0].b, cpu(1));
  EXPECT_EQ(graph.links[0].count, 4);
  EXPECT_DOUBLE_EQ(*graph.links[0].gbytes_per_s, 45);
  ASSERT_EQ(graph.findings.size(), 1u);
  EXPECT_EQ(graph.findings[0].text(), "GPU0: found 4 active C2C links; wanted 5");
}

TEST_F(NvmlTest, MigDevicesAndLostGpus) {
  const Graph graph = read("gpu GPU-a 0 3 90 0 2 -1\ngpu lost 0 4 90 0 0 -1\ngpu GPU-c 0 5 90 0 0 -1\nlink 2 0 away 9 6\n");
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_TRUE(*graph.gpus[0].mig);
  EXPECT_EQ(graph.gpus[0].slices.size(), 2u);
  EXPECT_EQ(graph.gpus[1].index, 2);
  EXPECT_FALSE(*graph.gpus[1].mig);
  ASSERT_EQ(graph.findings.size(), 2u);
  EXPECT_EQ(graph.findings[0].text(), "NVML index 1: found error 15; wanted a GPU that answers");
  EXPECT_EQ(graph.findings[1].text(), "GPU2: found 1 active NVLinks to devices not shown here; wanted GPUs or NVSwitches");
}

TEST_F(NvmlTest, BothSourcesMakeOneMachine) {
  build_machine();
  load("gpu GPU-a 0 4 90 0 -1 -1\ngpu GPU-b 0 81 90 1 -1 -1\npath 0 1 50\npath 1 0 50\n");
  const Graph graph = this_machine(root_, MUSTER_FAKE_NVML);
  ASSERT_EQ(graph.gpus.size(), 2u);
  EXPECT_EQ(*graph.gpus[0].uuid, "GPU-a");
  EXPECT_EQ(graph.cell(gpu(0), nic(0)), "PIX");
  EXPECT_EQ(graph.cell(gpu(1), nic(0)), "SYS");
  EXPECT_EQ(graph.cell(gpu(0), gpu(1)), "SYS");
  ASSERT_EQ(graph.findings.size(), 1u);
  EXPECT_THAT(graph.findings[0].text(), HasSubstr("found 3 more GPUs on PCIe than NVML shows"));
}

TEST_F(NvmlTest, DisagreementIsAFindingAndNvmlKeepsItsWord) {
  build_machine();
  load("gpu GPU-a 0 3 90 1 -1 -1\ngpu GPU-b 0 4 90 0 -1 -1\npath 0 1 30\npath 1 0 30\n");
  const Graph graph = this_machine(root_, MUSTER_FAKE_NVML);
  std::string all;
  for (const auto& finding : graph.findings) all += finding.text() + "\n";
  EXPECT_THAT(all, HasSubstr("GPU0: found NUMA node 0 (sysfs); wanted 1 (NVML)"));
  EXPECT_THAT(all, HasSubstr("GPU0-GPU1: found PIX (sysfs); wanted PHB (NVML)"));
  EXPECT_EQ(*graph.gpus[0].numa, 1);
}

}  // namespace
}  // namespace muster::comm::topology
