#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/pci_tree.h"
#include "comm/topology/readers.h"
#include "comm/topology/words.h"
#include "comm/topology/xml.h"

namespace muster::comm::topology {
namespace {

constexpr Source kSource = Source::kHwloc;
constexpr int kMaxPciNodes = 16384;

std::string text_of(const XmlElement& element, const char* key) {
  const auto* value = element.attribute(key);
  return value ? trimmed(*value) : "";
}

std::string info(const XmlElement& object, const char* key) {
  for (const auto& child : object.children)
    if (child.name == "info" && text_of(child, "name") == key) return printable(text_of(child, "value"), kLongName);
  return "";
}

class HwlocReader {
 public:
  explicit HwlocReader(const std::string& file) : file_(file) {}

  Graph read(const XmlElement& topology) {
    version_2_ = text_of(topology, "version").starts_with("2");
    for (const auto& child : topology.children)
      if (child.name == "object") read_object(child, {});
    finish_devices();
    for (const auto& child : topology.children)
      if (child.name == "distances2hetero" && text_of(child, "name") == "NVLinkBandwidth") read_bandwidths(child);
    add_tree_paths(graph_, SwitchShape::kPortByPort, kSource);
    check_health(graph_);
    return std::move(graph_);
  }

 private:
  struct Place {
    int numa = -1;
    int node = -1;  // in graph_.pci
  };

  void odd(const XmlElement& element, std::string found, std::string wanted) {
    graph_.add_finding(fmt::format("{}:{}", file_, element.line), std::move(found), std::move(wanted));
  }

  void read_object(const XmlElement& object, Place place) {
    const std::string type = text_of(object, "type");
    if (type == "Package") read_package(object);
    if (type == "NUMANode") read_numa(object);
    if (type == "Bridge") place.node = add_node(object, place);
    if (type == "PCIDev") read_pci_device(object, place);
    if (type == "OSDev") read_os_device(object, place);
    // A NUMA node hangs as a memory child below what it belongs to; two of them say nothing about the rest.
    const XmlElement* numa = nullptr;
    int nodes = 0;
    for (const auto& child : object.children)
      if (text_of(child, "type") == "NUMANode") numa = &child, ++nodes;
    if (nodes == 1) place.numa = parse_int(text_of(*numa, "os_index")).value_or(-1);
    for (const auto& child : object.children)
      if (child.name == "object") read_object(child, place);
  }

  Fact<std::string> cpus_of(const XmlElement& object) {
    const std::string mask = text_of(object, "cpuset");
    const auto cpus = parse_cpu_mask(mask);
    if (!cpus) odd(object, "cpuset=" + in_quotes(mask), "32-bit hexadecimal words with commas between");
    return cpus ? Fact<std::string>{to_cpu_list(*cpus), kSource} : Fact<std::string>{};
  }

  void read_package(const XmlElement& object) {
    if (graph_.cpus.size() >= kMaxDevices) return odd(object, "one more Package", fmt::format("{} at most", kMaxDevices));
    Cpu cpu;
    cpu.package = parse_int(text_of(object, "os_index")).value_or(static_cast<int>(graph_.cpus.size()));
    cpu.cpus = cpus_of(object);
    if (const auto vendor = info(object, "CPUVendor"); !vendor.empty()) cpu.vendor = {vendor, kSource};
    if (const auto model = info(object, "CPUModel"); !model.empty()) cpu.model = {model, kSource};
    graph_.cpus.push_back(std::move(cpu));
  }

  void read_numa(const XmlElement& object) {
    const auto id = parse_int(text_of(object, "os_index"));
    if (!id) return odd(object, "NUMANode os_index=" + in_quotes(text_of(object, "os_index")), "a number from 0");
    if (graph_.numa_nodes.size() >= kMaxDevices) return odd(object, "one more NUMANode", fmt::format("{} at most", kMaxDevices));
    NumaNode node{*id, cpus_of(object), {}};
    if (const auto bytes = parse_unsigned(text_of(object, "local_memory")); bytes && *bytes < 1ull << 62)
      node.memory_bytes = {static_cast<long long>(*bytes), kSource};
    graph_.numa_nodes.push_back(std::move(node));
  }

  int add_node(const XmlElement& object, Place place) {
    if (graph_.pci.size() >= kMaxPciNodes) return odd(object, "one more PCI object", fmt::format("{} at most", kMaxPciNodes)), -1;
    const bool host = text_of(object, "bridge_type").starts_with("0-");
    const bool bridge = text_of(object, "type") == "Bridge";
    PciNode node{PciNode::Kind::kDevice, "", host ? -1 : place.node, place.numa, {}};
    if (bridge) node.kind = host ? PciNode::Kind::kHostBridge : PciNode::Kind::kBridge;
    const auto bus_id = normal_bus_id(text_of(object, "pci_busid"));
    if (!bus_id && !host) odd(object, "pci_busid=" + in_quotes(text_of(object, "pci_busid")), "DDDD:BB:DD.F");
    node.bus_id = host ? host_bridge(text_of(object, "bridge_pci")) : bus_id.value_or("");
    graph_.pci.push_back(std::move(node));
    return static_cast<int>(graph_.pci.size()) - 1;
  }

  // "0000:[2b-3b]" is pci0000:2b, as sysfs calls it.
  static std::string host_bridge(const std::string& range) {
    return range.size() >= 8 && range[5] == '[' ? "pci" + printable(range.substr(0, 5) + range.substr(6, 2)) : "";
  }

  void read_pci_device(const XmlElement& object, Place& place) {
    place.node = add_node(object, place);
    if (place.node < 0) return;
    const std::string id = text_of(object, "gp_index");
    if (text_of(object, "subtype") == "NVSwitch" && graph_.switches.size() < kMaxDevices) {
      const int index = static_cast<int>(graph_.switches.size());
      graph_.switches.push_back({index, {graph_.pci[place.node].bus_id, kSource}});
      graph_.pci[place.node].device = ends_["PCIDev:" + id] = nvswitch(index);
    }
    const std::string pci_type = text_of(object, "pci_type");
    const bool gpu = pci_type.starts_with("030") && pci_type.find(" [10de:") != std::string::npos;
    if (gpu) add_gpu(object, place);  // also where no NVML backend was there to name it
    nic_of_node_ = -1;
  }

  void add_gpu(const XmlElement& object, Place place) {
    if (graph_.gpus.size() >= kMaxDevices) return odd(object, "one more GPU", fmt::format("{} at most", kMaxDevices));
    Gpu gpu;
    gpu.index = static_cast<int>(graph_.gpus.size());
    gpu.bus_id = {graph_.pci[place.node].bus_id, kSource};
    if (place.numa >= 0) gpu.numa = {place.numa, kSource};
    graph_.pci[place.node].device = topology::gpu(gpu.index);
    graph_.gpus.push_back(std::move(gpu));
  }

  void read_os_device(const XmlElement& object, Place place) {
    const std::string name = printable(text_of(object, "name"));
    const int type = parse_int(text_of(object, "osdev_type")).value_or(0);
    if (place.node < 0 || graph_.pci[place.node].kind != PciNode::Kind::kDevice) return;
    const auto device = graph_.pci[place.node].device;
    const bool on_gpu = device && device->kind == DeviceKind::kGpu;
    if (device && !on_gpu && device->kind != DeviceKind::kNic) return;
    if (on_gpu && name.starts_with("nvml")) return name_gpu(object, graph_.gpus[device->index]);
    if (on_gpu && name.starts_with("cuda") && !graph_.gpus[device->index].model) {
      if (const auto model = info(object, "GPUModel"); !model.empty()) graph_.gpus[device->index].model = {model, kSource};
    }
    // hwloc 2 counts the types, hwloc 3 has a bit for each.
    if (version_2_ ? type == 2 : (type & 16) != 0) read_network(object, place, name, false);
    if (version_2_ ? type == 3 : (type & 32) != 0) read_network(object, place, name, true);
  }

  void name_gpu(const XmlElement& object, Gpu& gpu) {
    if (const auto uuid = info(object, "NVIDIAUUID"); !uuid.empty()) gpu.uuid = {uuid, kSource};
    if (const auto model = info(object, "GPUModel"); !model.empty()) gpu.model = {model, kSource};
    ends_["OSDev:" + text_of(object, "gp_index")] = topology::gpu(gpu.index);
  }

  // One PCI function may show a network interface and an InfiniBand device: one NIC of ours.
  void read_network(const XmlElement& object, Place place, const std::string& name, bool infiniband) {
    if (nic_of_node_ < 0) {
      if (graph_.nics.size() >= kMaxDevices) return odd(object, "one more NIC", fmt::format("{} at most", kMaxDevices));
      nic_of_node_ = static_cast<int>(graph_.nics.size());
      Nic nic;
      nic.index = nic_of_node_;
      nic.bus_id = {graph_.pci[place.node].bus_id, kSource};
      if (place.numa >= 0) nic.numa = {place.numa, kSource};
      graph_.pci[place.node].device = topology::nic(nic.index);
      graph_.nics.push_back(std::move(nic));
    }
    Nic& nic = graph_.nics[nic_of_node_];
    if (infiniband) nic.name = {name, kSource};
    if (!infiniband) nic.interface = {name, kSource};
  }

  void finish_devices() {
    for (auto& gpu : graph_.gpus)
      for (const auto& node : graph_.numa_nodes)
        if (gpu.numa && node.id == *gpu.numa) gpu.cpus = node.cpus;
    for (auto& nic : graph_.nics)
      if (!nic.name) nic.name = nic.interface;
  }

  // The matrix comes in pieces of ten numbers; MB/s from row to column.
  void read_bandwidths(const XmlElement& distances) {
    std::vector<std::string> ids;
    std::vector<double> values;
    for (const auto& child : distances.children) {
      for (const auto& word : split_words(child.text)) {
        if (child.name == "indexes") ids.push_back(word);
        if (child.name == "u64values") values.push_back(static_cast<double>(parse_unsigned(word).value_or(0)));
      }
    }
    if (ids.size() > 2 * kMaxDevices || values.size() != ids.size() * ids.size()) {
      return odd(distances, fmt::format("{} values for {} devices", values.size(), ids.size()),
                 fmt::format("{} squared of them", ids.size()));
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ends_.contains(ids[i])) odd(distances, "index " + in_quotes(ids[i]), "the gp_index of an NVML or NVSwitch object");
      for (size_t j = i + 1; j < ids.size(); ++j)
        read_bandwidth(distances, ids[i], ids[j], values[i * ids.size() + j], values[j * ids.size() + i]);
    }
  }

  void read_bandwidth(const XmlElement& distances, const std::string& a, const std::string& b, double there, double back) {
    const auto from = ends_.find(a), to = ends_.find(b);
    if (from == ends_.end() || to == ends_.end() || (there == 0 && back == 0)) return;
    const std::string pair = name_of(from->second) + "-" + name_of(to->second);
    if (there != back) odd(distances, fmt::format("{} MB/s {} and {} back", there, pair, back), "the same both ways");
    // One link carries 25 GB/s from NVLink 2 on, 20 in NVLink 1.
    for (const double link : {25000.0, 20000.0}) {
      const double count = there / link;
      if (count < 1 || count > 64 || count != static_cast<int>(count)) continue;
      return graph_.add_link(
          {from->second, to->second, LinkKind::kNvLink, static_cast<int>(count), {}, {link / 1000, kSource}, kSource});
    }
    odd(distances, fmt::format("{} MB/s {}", there, pair), "a multiple of 25000 or 20000");
  }

  const std::string& file_;
  Graph graph_;
  std::map<std::string, Device> ends_;  // "OSDev:802", as distances name them
  bool version_2_ = false;
  int nic_of_node_ = -1;
};

}  // namespace

Graph read_hwloc_xml(std::string_view text, const std::string& file) {
  const XmlElement root = parse_xml(text, file);
  if (root.name != "topology") refuse("{}:{}: found <{}>; wanted <topology>, hwloc's XML", file, root.line, printable(root.name));
  if (const auto version = root.attribute("version"); !version || *version < "2")
    refuse("{}:{}: found version {}; wanted hwloc 2 or 3; write it with lstopo --of xml of hwloc >= 2", file, root.line,
           in_quotes(version ? *version : "1"));
  return HwlocReader(file).read(root);
}

}  // namespace muster::comm::topology
