#include <algorithm>
#include <array>
#include <cstdint>

#include <dlfcn.h>
#include <fmt/format.h>

#include "comm/topology/live.h"
#include "comm/topology/matrix_text.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

constexpr Source kSource = Source::kNvml;

// NVML's numbers, as its header fixes them for all drivers.
constexpr int kSuccess = 0, kNotFound = 6;
constexpr unsigned kMaxLinks = 36;  // of a GPU, in the newest header
constexpr unsigned kNodeScope = 0;  // affinity scope
constexpr unsigned kMaxMig = 8;
constexpr unsigned kRemoteSwitch = 2;                                           // nvmlIntNvLinkDeviceType_t
constexpr std::pair<unsigned, PathClass> kAncestors[] = {{0, PathClass::kPix},  // INTERNAL: both chips of one board
                                                         {10, PathClass::kPix},  {20, PathClass::kPxb}, {30, PathClass::kPhb},
                                                         {40, PathClass::kNode}, {50, PathClass::kSys}};
constexpr const char* kP2pStates[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
constexpr unsigned kP2pRead = 0;
constexpr unsigned kC2cCount = 170, kC2cStatus = 171, kC2cMegabytes = 172;  // fields; the latter two by link
constexpr const char* kFabricStates[] = {"Not Supported", "Not Started", "In Progress", "Completed"};
constexpr int kGenerations[] = {0, 1, 2, 2, 3, 3, 4, 5, 6};  // of the raw link version: 1.0 2.0 2.2 3.0 3.1 4.0 5.0 6.0

using Handle = void*;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct FabricInfo {
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
};

struct FieldValue {
  unsigned field, link;
  long long timestamp, latency;
  int type, error;
  union {
    unsigned number;
    unsigned long long wide;
  } value;
};

// The driver's library, loaded at run time; a function that an older driver lacks answers "not found".
class Nvml {
 public:
  explicit Nvml(const std::string& library) : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    started_ = library_ && call<>("nvmlInit_v2") == kSuccess;
  }
  ~Nvml() {
    if (started_) call<>("nvmlShutdown");
    if (library_) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return library_ != nullptr; }
  bool started() const { return started_; }

  template <typename... Args>
  int call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<int (*)(Args...)>(::dlsym(library_, name));
    return function ? function(args...) : kNotFound;
  }

  template <typename T, typename... Args>
  Fact<T> get(const char* name, Args... args) const {
    unsigned value = 0;
    if (call(name, args..., &value) != kSuccess) return {};
    return {static_cast<T>(value), kSource};
  }

  std::optional<unsigned> field(Handle device, unsigned field, unsigned link = 0) const {
    FieldValue out{};
    out.field = field;
    out.link = link;
    const bool told = call("nvmlDeviceGetFieldValues", device, 1, &out) == kSuccess && out.error == kSuccess;
    return told ? std::optional(out.value.number) : std::nullopt;
  }

  std::string text(const char* name, Handle device) const {
    std::array<char, 97> buffer{};
    if (call(name, device, buffer.data(), static_cast<unsigned>(buffer.size() - 1)) != kSuccess) return "";
    return printable(buffer.data(), kLongName);
  }

 private:
  void* library_;
  bool started_ = false;
};

class NvmlReader {
 public:
  explicit NvmlReader(const Nvml& nvml) : nvml_(nvml) {}

  Graph read() {
    unsigned count = 0;
    if (const int error = nvml_.call("nvmlDeviceGetCount_v2", &count)) {
      graph_.add_finding("NVML", fmt::format("error {} when asked for the GPUs", error), "their number");
      return std::move(graph_);
    }
    for (unsigned i = 0; i < std::min<unsigned>(count, kMaxDevices); ++i) read_gpu(i);
    for (size_t i = 0; i < graph_.gpus.size(); ++i) {
      read_links(static_cast<int>(i));
      read_c2c(static_cast<int>(i));
    }
    for (size_t i = 0; i < graph_.gpus.size(); ++i)
      for (size_t j = 0; j < graph_.gpus.size(); ++j)
        if (i != j) read_pair(static_cast<int>(i), static_cast<int>(j));
    check_health(graph_);
    return std::move(graph_);
  }

 private:
  void read_gpu(unsigned index) {
    Handle device = nullptr;
    if (const int error = nvml_.call("nvmlDeviceGetHandleByIndex_v2", index, &device)) {
      return graph_.add_finding(fmt::format("NVML index {}", index), fmt::format("error {}", error), "a GPU that answers");
    }
    Gpu gpu;
    gpu.index = static_cast<int>(index);
    if (const auto uuid = nvml_.text("nvmlDeviceGetUUID", device); !uuid.empty()) gpu.uuid = {uuid, kSource};
    if (const auto model = nvml_.text("nvmlDeviceGetName", device); !model.empty()) gpu.model = {model, kSource};
    PciInfo pci{};
    if (nvml_.call("nvmlDeviceGetPciInfo_v3", device, &pci) == kSuccess)
      gpu.bus_id = {fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device), kSource};
    gpu.pcie_generation = nvml_.get<int>("nvmlDeviceGetMaxPcieLinkGeneration", device);
    gpu.pcie_width = nvml_.get<int>("nvmlDeviceGetMaxPcieLinkWidth", device);
    gpu.pcie_width_now = nvml_.get<int>("nvmlDeviceGetCurrPcieLinkWidth", device);
    gpu.module = nvml_.get<int>("nvmlDeviceGetModuleId", device);
    int major = 0, minor = 0;
    if (nvml_.call("nvmlDeviceGetCudaComputeCapability", device, &major, &minor) == kSuccess)
      gpu.compute_capability = {major * 10 + minor, kSource};
    read_affinity(gpu, device);
    read_mig(gpu, device);
    read_fabric(gpu, device);
    graph_.gpus.push_back(std::move(gpu));
    devices_.push_back(device);
  }

  static CpuSet bits_of(const unsigned long* words, size_t count) {
    CpuSet out;
    for (size_t bit = 0; bit < count * 64; ++bit)
      if (words[bit / 64] >> (bit % 64) & 1) out.push_back(static_cast<int>(bit));
    return out;
  }

  void read_affinity(Gpu& gpu, Handle device) {
    std::array<unsigned long, 64> cpus{};
    if (nvml_.call("nvmlDeviceGetCpuAffinity", device, static_cast<unsigned>(cpus.size()), cpus.data()) == kSuccess)
      gpu.cpus = {to_cpu_list(bits_of(cpus.data(), cpus.size())), kSource};
    std::array<unsigned long, 8> nodes{};
    if (nvml_.call("nvmlDeviceGetMemoryAffinity", device, static_cast<unsigned>(nodes.size()), nodes.data(), kNodeScope) !=
        kSuccess)
      return;
    const CpuSet numa = bits_of(nodes.data(), nodes.size());
    if (numa.size() == 1) gpu.numa = {numa[0], kSource};
  }

  void read_mig(Gpu& gpu, Handle device) {
    unsigned current = 0, pending = 0, most = 0;
    if (nvml_.call("nvmlDeviceGetMigMode", device, &current, &pending) != kSuccess) return;
    gpu.mig = {current == 1, kSource};
    if (current != 1 || nvml_.call("nvmlDeviceGetMaxMigDeviceCount", device, &most) != kSuccess) return;
    for (unsigned i = 0; i < std::min(most, kMaxMig); ++i) {
      Handle slice = nullptr;
      if (nvml_.call("nvmlDeviceGetMigDeviceHandleByIndex", device, i, &slice) != kSuccess) continue;
      gpu.slices.push_back({nvml_.text("nvmlDeviceGetName", slice), nvml_.text("nvmlDeviceGetUUID", slice)});
    }
  }

  void read_fabric(Gpu& gpu, Handle device) {
    FabricInfo info{};
    if (nvml_.call("nvmlDeviceGetGpuFabricInfo", device, &info) != kSuccess || info.state == 0 || info.state > 3) return;
    gpu.fabric = {kFabricStates[info.state], kSource};
    if (info.state == 3) gpu.fabric_clique = {static_cast<int>(info.clique), kSource};
    if (info.state == 3 && info.status != kSuccess)
      graph_.add_finding(name_of(topology::gpu(gpu.index)), fmt::format("NVLink fabric error {}", info.status),
                         "0; see the fabric manager's log");
  }

  std::optional<Device> device_at(const std::string& bus_id) const {
    for (const auto& gpu : graph_.gpus)
      if (gpu.bus_id.value == bus_id) return topology::gpu(gpu.index);
    return std::nullopt;
  }

  // In a virtual machine all switches share one made-up bus id: then one stands for all.
  Device switch_at(const std::string& bus_id) {
    for (const auto& known : graph_.switches)
      if (known.bus_id.value == bus_id) return nvswitch(known.index);
    const int index = static_cast<int>(graph_.switches.size());
    graph_.switches.push_back({index, {bus_id, kSource}});
    return nvswitch(index);
  }

  void read_links(int place) {
    const Device self = topology::gpu(graph_.gpus[place].index);
    std::map<Device, Link> links;
    int unknown = 0;
    for (unsigned i = 0; i < kMaxLinks; ++i) {
      unsigned active = 0;  // an error tells only that there is no such link: later ones may exist
      if (nvml_.call("nvmlDeviceGetNvLinkState", devices_[place], i, &active) != kSuccess || active != 1) continue;
      const auto remote = remote_of(place, i);
      if (!remote) {
        ++unknown;
        continue;
      }
      auto& link = links.try_emplace(*remote, Link{self, *remote, LinkKind::kNvLink, 0, {}, {}, kSource}).first->second;
      ++link.count;
      const auto version = nvml_.get<int>("nvmlDeviceGetNvLinkVersion", devices_[place], i);
      if (version && *version > 0 && *version < static_cast<int>(std::size(kGenerations)))
        link.generation = {kGenerations[*version], kSource};
    }
    for (const auto& [remote, link] : links) graph_.add_link(link);
    if (unknown > 0)
      graph_.add_finding(name_of(self), fmt::format("{} active NVLinks to devices not shown here", unknown),
                         "GPUs or NVSwitches");
  }

  // Links of a GPU to its own CPU (Grace).
  void read_c2c(int place) {
    const auto links = nvml_.field(devices_[place], kC2cCount);
    Link link{topology::gpu(graph_.gpus[place].index),
              cpu(graph_.gpus[place].numa.value.value_or(0)),
              LinkKind::kC2c,
              0,
              {},
              {},
              kSource};
    for (unsigned i = 0; i < std::min(links.value_or(0), kMaxLinks); ++i) {
      if (nvml_.field(devices_[place], kC2cStatus, i).value_or(0) != 1) continue;
      ++link.count;
      if (const auto rate = nvml_.field(devices_[place], kC2cMegabytes, i)) link.gbytes_per_s = {*rate / 1000.0, kSource};
    }
    if (link.count > 0) graph_.add_link(link);
    if (links && link.count < static_cast<int>(std::min(*links, kMaxLinks))) {
      graph_.add_finding(name_of(link.a), fmt::format("{} active C2C links", link.count), fmt::format("{}", *links));
    }
  }

  std::optional<Device> remote_of(int place, unsigned link) {
    PciInfo pci{};
    if (nvml_.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", devices_[place], link, &pci) != kSuccess) return std::nullopt;
    const auto bus_id = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    if (const auto gpu = device_at(bus_id)) return gpu;
    const auto type = nvml_.get<unsigned>("nvmlDeviceGetNvLinkRemoteDeviceType", devices_[place], link);
    const bool virtual_switch = pci.domain >= 0xfffff;
    return (type && *type == kRemoteSwitch) || virtual_switch ? std::optional(switch_at(bus_id)) : std::nullopt;
  }

  void read_pair(int a, int b) {
    const int from = graph_.gpus[a].index, to = graph_.gpus[b].index;
    const auto state = nvml_.get<unsigned>("nvmlDeviceGetP2PStatus", devices_[a], devices_[b], kP2pRead);
    if (state) graph_.p2p[{from, to}] = {kP2pStates[std::min<size_t>(*state, std::size(kP2pStates) - 1)], kSource};
    const auto ancestor = nvml_.get<unsigned>("nvmlDeviceGetTopologyCommonAncestor", devices_[a], devices_[b]);
    for (const auto& [value, path] : kAncestors)
      if (ancestor && *ancestor == value) graph_.add_path(topology::gpu(from), topology::gpu(to), path, kSource);
  }

  const Nvml& nvml_;
  Graph graph_;
  std::vector<Handle> devices_;  // beside graph_.gpus
};

}  // namespace

Graph read_nvml(const std::string& library) {
  const Nvml nvml(library);
  if (nvml.started()) return NvmlReader(nvml).read();
  Graph graph;
  if (nvml.loaded())
    graph.add_finding("NVML", "the driver's library, which does not start", "a running NVIDIA driver; try nvidia-smi");
  return graph;
}

}  // namespace muster::comm::topology
