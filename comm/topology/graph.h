#pragma once
// One machine as a graph: GPUs, NICs, NUMA nodes, CPUs, NVSwitches, and what joins them. Every fact carries the source that told
// it.

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::comm::topology {

enum class Source { kNone, kNcclXml, kNcclGraph, kTopoMatrix, kP2pMatrix, kSmiXml, kSmiList, kHwloc, kSysfs, kNvml };
const char* name_of(Source source);  // "nvidia-smi topo -m", "sysfs", ...

template <typename T>
struct Fact {
  std::optional<T> value;
  Source source = Source::kNone;
  explicit operator bool() const { return value.has_value(); }
  const T& operator*() const { return *value; }
  bool operator==(const Fact&) const = default;
};

// Something that is not as it should be: a malformed line, sources that disagree, a link that its peers have and it has not.
struct Finding {
  std::string where;  // "FILE:LINE" or a device
  std::string found;
  std::string wanted;
  std::string text() const;  // one line
  bool operator==(const Finding&) const = default;
};

enum class DeviceKind { kGpu, kNic, kSwitch, kCpu };

struct Device {
  DeviceKind kind = DeviceKind::kGpu;
  int index = 0;
  auto operator<=>(const Device&) const = default;
};
inline Device gpu(int index) { return {DeviceKind::kGpu, index}; }
inline Device nic(int index) { return {DeviceKind::kNic, index}; }
inline Device nvswitch(int index) { return {DeviceKind::kSwitch, index}; }
inline Device cpu(int numa) { return {DeviceKind::kCpu, numa}; }  // the processor of that NUMA node
std::string name_of(Device device);  // "GPU0", "NIC3", "SW1", "CPU0"

// How far apart two devices are on PCIe, in the words of `nvidia-smi topo -m`, nearest first.
enum class PathClass { kPix, kPxb, kPhb, kNode, kSys };
const char* name_of(PathClass path);
std::optional<PathClass> path_class(const std::string& word);  // also SOC, which old drivers print for SYS

enum class LinkKind { kNvLink, kXgmi, kC2c };
const char* name_of(LinkKind kind);  // "NV", "XGMI", "C2C": what stands before the count in a matrix cell

// `count` bonded links between two devices; a < b.
struct Link {
  Device a, b;
  LinkKind kind = LinkKind::kNvLink;
  int count = 0;
  Fact<int> generation;       // NVLink 1..6
  Fact<double> gbytes_per_s;  // one link, one direction, before protocol overhead
  Source source = Source::kNone;
  bool operator==(const Link&) const = default;
};

struct MigSlice {
  std::string profile, uuid;
  bool operator==(const MigSlice&) const = default;
};

struct Gpu {
  int index = 0;  // as nvidia-smi counts; in an NCCL file the `dev`, or the place in bus order
  Fact<std::string> uuid, bus_id, model;
  Fact<int> numa;
  Fact<std::string> cpus;                 // "0-15,32-47"
  Fact<int> pcie_generation, pcie_width;  // the most that the device and its slot can do; lanes
  Fact<int> pcie_width_now;
  Fact<int> compute_capability;  // 90 is sm_90
  Fact<bool> mig;
  std::vector<MigSlice> slices;
  Fact<std::string> fabric;  // "Completed", "In Progress", ...
  Fact<int> fabric_clique, module;
  bool operator==(const Gpu&) const = default;
};

struct Nic {
  int index = 0;
  Fact<std::string> name, bus_id, interface;  // "mlx5_0", "0000:18:00.0", "ens1f0"
  Fact<int> numa;
  Fact<int> mbits_per_s;
  Fact<std::string> state;  // "ACTIVE", "DOWN", "up"
  Fact<bool> rdma;          // InfiniBand or RoCE; off for plain Ethernet
  bool operator==(const Nic&) const = default;
};

struct NumaNode {
  int id = 0;
  Fact<std::string> cpus;
  Fact<long long> memory_bytes;
  bool operator==(const NumaNode&) const = default;
};

struct NvSwitch {
  int index = 0;
  Fact<std::string> bus_id;
  bool operator==(const NvSwitch&) const = default;
};

struct Cpu {
  int package = 0;
  Fact<std::string> vendor, model, arch, cpus;
  bool operator==(const Cpu&) const = default;
};

// One step of the PCIe tree; the graph keeps parents before their children.
struct PciNode {
  enum class Kind { kHostBridge, kBridge, kDevice };
  Kind kind = Kind::kDevice;
  std::string bus_id;  // "0000:18:00.0"; of a host bridge "pci0000:17", or "" where the source does not name it
  int parent = -1;     // in Graph::pci
  int numa = -1;
  std::optional<Device> device;  // the GPU, NIC or switch that sits here
  bool operator==(const PciNode&) const = default;
};

// One ring or tree that NCCL recorded in an NCCL_GRAPH_FILE.
struct Channel {
  std::string pattern;
  std::vector<int> gpus;
  double gbytes_per_s = 0;
  bool operator==(const Channel&) const = default;
};

// A value: copy it freely. Lists are in index order; readers leave it so. Threads: as any plain value.
struct Graph {
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<NumaNode> numa_nodes;
  std::vector<NvSwitch> switches;
  std::vector<Cpu> cpus;
  std::vector<PciNode> pci;
  std::vector<Link> links;
  std::vector<Channel> channels;
  std::map<std::pair<Device, Device>, Fact<PathClass>> paths;  // first < second
  std::map<std::pair<int, int>, Fact<std::string>> p2p;        // GPU to GPU, each direction: "OK", "NS", "GNS", ...
  std::vector<Finding> findings;

  // Adds, or where the pair has such a link already, compares: another count is a finding.
  void add_link(Link link);
  // The same for a path.
  void add_path(Device a, Device b, PathClass path, Source source, const std::string& where = "");
  void add_finding(std::string where, std::string found, std::string wanted);

  const Gpu* find_gpu(int index) const;
  const Link* find_link(Device a, Device b) const;
  int switch_links(int gpu) const;  // NVLinks of this GPU that end in a switch
  // NVLinks (or xGMI) that two GPUs may use at once: direct ones, or where both hang on switches, the smaller number of those.
  int joined_by(int gpu_a, int gpu_b) const;
  // What `nvidia-smi topo -m` prints for a pair: "X", "NV12", "PIX", ...; "?" where no source told.
  std::string cell(Device a, Device b) const;
  bool operator==(const Graph&) const = default;
};

inline constexpr int kMaxDevices = 512;  // of a kind; what readers accept

// Every fact with its source, then the matrix, links and findings. The same graph gives the same text, byte for byte.
std::string to_text(const Graph& graph);
std::string to_json(const Graph& graph);
// The layout of `nvidia-smi topo -m`, tabs and all, with its two legends. As there, without NICs known to have no RDMA.
std::string to_matrix(const Graph& graph);
// NUMA nodes, below them the PCIe tree with GPUs and NICs.
std::string to_tree(const Graph& graph);
std::string to_svg(const Graph& graph);

// Adds what `other` knows of the same machine. GPUs are matched by UUID, else bus id, else index; NICs by bus id or name.
// Where both know a fact and differ, `into` keeps its own and gets a finding.
void merge(Graph& into, const Graph& other);

// Looks for what a healthy machine would not have: GPUs of one model with unequal link counts, a narrow PCIe link, a fabric that
// is not ready. Adds findings.
void check_health(Graph& graph);

}  // namespace muster::comm::topology
