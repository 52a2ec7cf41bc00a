#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>

#include "comm/topology/live.h"
#include "comm/topology/pci_tree.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

namespace fs = std::filesystem;
constexpr Source kSource = Source::kSysfs;
constexpr int kMaxNodes = 16384;

std::string read_line(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  std::getline(in, line);
  return trimmed(std::string_view(line).substr(0, 4096));
}

// "mlx5_2" before "mlx5_10".
bool natural_less(const std::string& a, const std::string& b) {
  const size_t digits_a = a.find_last_not_of("0123456789") + 1, digits_b = b.find_last_not_of("0123456789") + 1;
  if (a.substr(0, digits_a) != b.substr(0, digits_b)) return a < b;
  return leading_int(std::string_view(a).substr(digits_a)).value_or(-1) <
         leading_int(std::string_view(b).substr(digits_b)).value_or(-1);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().filename());
  std::sort(out.begin(), out.end(), natural_less);
  return out;
}

class SysfsReader {
 public:
  explicit SysfsReader(const std::string& root) : root_(root), sys_(root_ / "sys") {}

  Graph read() {
    read_numa_nodes();
    read_cpus();
    read_pci();
    read_networks();
    add_tree_paths(graph_, SwitchShape::kPortByPort, kSource);
    check_health(graph_);
    return std::move(graph_);
  }

 private:
  Fact<std::string> cpus_at(const fs::path& path) {
    const std::string text = read_line(path);
    const auto cpus = parse_cpu_list(text);
    if (!cpus) graph_.add_finding(path, in_quotes(text), "a list such as 0-15,32-47");
    std::error_code error;
    return cpus && fs::exists(path, error) ? Fact<std::string>{to_cpu_list(*cpus), kSource} : Fact<std::string>{};
  }

  void read_numa_nodes() {
    for (const auto& name : names_in(sys_ / "devices/system/node")) {
      const auto id = name.starts_with("node") ? parse_int(std::string_view(name).substr(4)) : std::nullopt;
      if (!id || graph_.numa_nodes.size() >= kMaxDevices) continue;
      const fs::path folder = sys_ / "devices/system/node" / name;
      NumaNode node{*id, cpus_at(folder / "cpulist"), {}};
      const auto words = split_words(read_line(folder / "meminfo"));  // Node 0 MemTotal: 123 kB
      const auto kilobytes = words.size() > 3 ? parse_unsigned(words[3]) : std::nullopt;
      if (kilobytes && *kilobytes < 1ull << 50) node.memory_bytes = {static_cast<long long>(*kilobytes * 1024), kSource};
      graph_.numa_nodes.push_back(std::move(node));
    }
  }

  void read_cpus() {
    std::map<int, CpuSet> packages;
    for (const auto& name : names_in(sys_ / "devices/system/cpu")) {
      const auto cpu = name.starts_with("cpu") ? parse_int(std::string_view(name).substr(3)) : std::nullopt;
      if (!cpu) continue;
      const auto package = parse_int(read_line(sys_ / "devices/system/cpu" / name / "topology/physical_package_id"));
      if (package) packages[*package].push_back(*cpu);
    }
    const auto [vendor, model] = cpu_names();
    for (auto& [package, cpus] : packages) {
      std::sort(cpus.begin(), cpus.end());
      Cpu cpu;
      cpu.package = package;
      cpu.cpus = {to_cpu_list(cpus), kSource};
      if (!vendor.empty()) cpu.vendor = {vendor, kSource};
      if (!model.empty()) cpu.model = {model, kSource};
      graph_.cpus.push_back(std::move(cpu));
    }
  }

  // Of the first CPU in proc/cpuinfo.
  std::pair<std::string, std::string> cpu_names() const {
    std::ifstream in(root_ / "proc/cpuinfo");
    std::string vendor, model;
    int lines = 0;
    for (std::string line; lines < 64 && std::getline(in, line); ++lines) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const std::string value = printable(trimmed(std::string_view(line).substr(colon + 1)), kLongName);
      if (line.starts_with("vendor_id") && vendor.empty()) vendor = value;
      if (line.starts_with("model name") && model.empty()) model = value;
    }
    return {vendor, model};
  }

  // Where only one NUMA node is, Linux often says -1 for "it does not matter".
  int numa_of(const fs::path& device) const {
    const auto numa = parse_int(read_line(device / "numa_node"));
    if (numa) return *numa;
    return graph_.numa_nodes.size() == 1 ? graph_.numa_nodes[0].id : -1;
  }

  void read_pci() {
    const fs::path folder = sys_ / "bus/pci/devices";
    for (const auto& name : names_in(folder)) {
      const auto bus_id = normal_bus_id(name);
      if (!bus_id) {
        graph_.add_finding(folder / name, in_quotes(name), "DDDD:BB:DD.F");
      } else if (!place(folder / name)) {
        graph_.add_finding(folder / name, "no place in the PCIe tree", "a link into sys/devices/pciDDDD:BB");
      }
    }
    std::map<std::string, int> devices;  // by bus id, which is NVML's order too
    for (const auto& [bus_id, node] : nodes_)
      if (graph_.pci[node].kind == PciNode::Kind::kDevice) devices[bus_id] = node;
    for (const auto& [bus_id, node] : devices) read_device(folder / bus_id, bus_id, node);
  }

  // Adds the device and all above it. The node, or nothing where the path holds no host bridge.
  std::optional<int> place(const fs::path& link) {
    std::error_code error;
    const fs::path real = fs::canonical(link, error);
    if (error) return std::nullopt;
    int parent = -1;
    fs::path so_far;
    for (const auto& part : real) {
      so_far /= part;
      const std::string name = part;
      const auto bus_id = normal_bus_id(name);
      const bool host = name.starts_with("pci") && name.find(':') != std::string::npos && parent < 0;
      if (host || (bus_id && parent >= 0)) parent = node(host ? name : *bus_id, so_far, host, parent);
    }
    return parent >= 0 && graph_.pci[parent].kind != PciNode::Kind::kHostBridge ? std::optional(parent) : std::nullopt;
  }

  int node(const std::string& name, const fs::path& folder, bool host, int parent) {
    const auto known = nodes_.find(name);
    if (known != nodes_.end()) return known->second;
    if (graph_.pci.size() >= kMaxNodes) return parent;
    const bool bridge = pci_class(read_line(folder / "class")) == PciClass::kBridge;
    PciNode node{bridge ? PciNode::Kind::kBridge : PciNode::Kind::kDevice, name, parent, numa_of(folder), {}};
    if (host) node.kind = PciNode::Kind::kHostBridge;
    // The host bridge's own folder has no numa_node; what hangs below it has.
    if (!host && graph_.pci[parent].kind == PciNode::Kind::kHostBridge && graph_.pci[parent].numa < 0)
      graph_.pci[parent].numa = node.numa;
    graph_.pci.push_back(std::move(node));
    return nodes_[name] = static_cast<int>(graph_.pci.size()) - 1;
  }

  void read_device(const fs::path& folder, const std::string& bus_id, int node) {
    if (read_line(folder / "vendor") != "0x10de") return;
    const auto kind = pci_class(read_line(folder / "class"));
    if (kind == PciClass::kGpu && graph_.gpus.size() < kMaxDevices) read_gpu(folder, bus_id, node);
    if (kind == PciClass::kSwitch && graph_.switches.size() < kMaxDevices) {
      const int index = static_cast<int>(graph_.switches.size());
      graph_.switches.push_back({index, {bus_id, kSource}});
      graph_.pci[node].device = nvswitch(index);
    }
  }

  void read_gpu(const fs::path& folder, const std::string& bus_id, int node) {
    Gpu gpu;
    gpu.index = static_cast<int>(graph_.gpus.size());
    gpu.bus_id = {bus_id, kSource};
    if (const int numa = numa_of(folder); numa >= 0) gpu.numa = {numa, kSource};
    gpu.cpus = cpus_at(folder / "local_cpulist");
    std::error_code error;
    const fs::path slot = fs::canonical(folder, error).parent_path();
    if (const auto generation =
            least(pcie_generation(read_line(folder / "max_link_speed")), pcie_generation(read_line(slot / "max_link_speed"))))
      gpu.pcie_generation = {*generation, kSource};
    if (const auto width = least(lanes(folder / "max_link_width"), lanes(slot / "max_link_width")))
      gpu.pcie_width = {*width, kSource};
    if (const auto width = lanes(folder / "current_link_width")) gpu.pcie_width_now = {*width, kSource};
    graph_.pci[node].device = topology::gpu(gpu.index);
    graph_.gpus.push_back(std::move(gpu));
  }

  // Linux writes 0 or 255 where the device has no such link.
  static std::optional<int> lanes(const fs::path& path) {
    const auto width = parse_int(read_line(path));
    return width && *width > 0 && *width <= 32 ? width : std::nullopt;
  }

  static std::optional<int> least(std::optional<int> device, std::optional<int> slot) {
    return device && slot ? std::min(device, slot) : device;
  }

  // InfiniBand and RoCE devices first, as nvidia-smi numbers them; then interfaces that have none.
  void read_networks() {
    std::set<int> taken;
    for (const auto& name : names_in(sys_ / "class/infiniband")) {
      const fs::path folder = sys_ / "class/infiniband" / name;
      Nic* nic = add_nic(folder, taken, true);
      if (!nic) continue;
      nic->name = {printable(name), kSource};
      nic->rdma = {true, kSource};
      const auto state = split_words(read_line(folder / "ports/1/state"));  // "4: ACTIVE"
      if (state.size() > 1) nic->state = {printable(state[1]), kSource};
      const auto gigabits = leading_int(read_line(folder / "ports/1/rate"));  // "100 Gb/sec (4X EDR)"
      if (gigabits && *gigabits > 0 && *gigabits < 100000) nic->mbits_per_s = {*gigabits * 1000, kSource};
    }
    for (const auto& name : names_in(sys_ / "class/net")) {
      const fs::path folder = sys_ / "class/net" / name;
      Nic* nic = add_nic(folder, taken, false);
      if (!nic || nic->interface) continue;
      nic->interface = {printable(name), kSource};
      if (nic->name) continue;
      nic->name = nic->interface;
      nic->rdma = {false, kSource};
      if (const auto state = read_line(folder / "operstate"); !state.empty()) nic->state = {printable(state), kSource};
      if (const auto speed = parse_int(read_line(folder / "speed")); speed && *speed > 0) nic->mbits_per_s = {*speed, kSource};
    }
  }

  // The NIC at the PCI function of this class entry; null for devices that are none on PCI, as loopback and bridges.
  Nic* add_nic(const fs::path& folder, std::set<int>& taken, bool always_new) {
    std::error_code error;
    if (!fs::exists(folder / "device", error)) return nullptr;
    const auto node = place(folder / "device");
    if (!node) return nullptr;
    if (!taken.insert(*node).second && !always_new) return of_node(*node);
    if (graph_.pci[*node].device || graph_.nics.size() >= kMaxDevices) return nullptr;
    Nic nic;
    nic.index = static_cast<int>(graph_.nics.size());
    nic.bus_id = {graph_.pci[*node].bus_id, kSource};
    if (const int numa = graph_.pci[*node].numa; numa >= 0) nic.numa = {numa, kSource};
    graph_.pci[*node].device = topology::nic(nic.index);
    graph_.nics.push_back(std::move(nic));
    return &graph_.nics.back();
  }

  Nic* of_node(int node) {
    const auto device = graph_.pci[node].device;
    return device && device->kind == DeviceKind::kNic ? &graph_.nics[device->index] : nullptr;
  }

  const fs::path root_, sys_;
  Graph graph_;
  std::map<std::string, int> nodes_;  // by name in sys/devices
};

}  // namespace

Graph read_sysfs(const std::string& root) { return SysfsReader(root).read(); }

namespace {

// In a container or job Linux shows GPUs that the driver does not give: those are left out. How many.
int keep_only(Graph& seen, const Graph& given) {
  const auto is_given = [&](const Gpu& g) {
    return std::any_of(given.gpus.begin(), given.gpus.end(),
                       [&](const Gpu& other) { return other.bus_id.value == g.bus_id.value; });
  };
  std::set<Device> gone;
  for (const auto& g : seen.gpus)
    if (!is_given(g)) gone.insert(gpu(g.index));
  std::erase_if(seen.gpus, [&](const Gpu& g) { return gone.contains(gpu(g.index)); });
  std::erase_if(seen.paths,
                [&](const auto& path) { return gone.contains(path.first.first) || gone.contains(path.first.second); });
  std::erase_if(seen.findings, [&](const Finding& f) {
    return std::any_of(gone.begin(), gone.end(), [&](Device d) { return f.where == name_of(d); });
  });
  for (auto& node : seen.pci)
    if (node.device && gone.contains(*node.device)) node.device.reset();
  return static_cast<int>(gone.size());
}

}  // namespace

Graph this_machine(const std::string& root, const std::string& nvml_library) {
  Graph graph = read_nvml(nvml_library);
  Graph seen = read_sysfs(root);
  if (graph.gpus.empty()) {
    seen.findings.insert(seen.findings.begin(), graph.findings.begin(), graph.findings.end());
    return seen;
  }
  const int hidden = keep_only(seen, graph);
  merge(graph, seen);
  if (hidden > 0) {
    graph.add_finding("this machine", fmt::format("{} more GPUs on PCIe than NVML shows", hidden),
                      "all of them, unless a container or job holds some back");
  }
  return graph;
}

}  // namespace muster::comm::topology
