#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "comm/topology/graph.h"

namespace muster::comm::topology {
namespace {

std::string gpu_words(const Graph& graph, const Gpu& g) {
  std::string out = name_of(gpu(g.index));
  if (g.model) out += " " + *g.model;
  if (g.uuid) out += " " + *g.uuid;
  std::string peers;
  for (const auto& other : graph.gpus)
    if (const int links = other.index == g.index ? 0 : graph.joined_by(g.index, other.index))
      peers += fmt::format(" {}:{}", name_of(gpu(other.index)), links);
  if (!peers.empty()) out += ", links" + peers;
  return g.mig && *g.mig ? fmt::format("{}, MIG with {} devices", out, g.slices.size()) : out;
}

std::string nic_words(const Nic& n) {
  std::string out = name_of(nic(n.index));
  if (n.name) out += " " + *n.name;
  if (n.interface && n.interface.value != n.name.value) out += " " + *n.interface;
  if (n.state) out += " " + *n.state;
  return n.mbits_per_s ? fmt::format("{} {:g} Gbit/s", out, *n.mbits_per_s / 1000.0) : out;
}

std::string words(const Graph& graph, Device device) {
  if (device.kind == DeviceKind::kGpu && graph.find_gpu(device.index)) return gpu_words(graph, *graph.find_gpu(device.index));
  if (device.kind == DeviceKind::kNic && device.index < static_cast<int>(graph.nics.size()))
    return nic_words(graph.nics[device.index]);
  return device.kind == DeviceKind::kSwitch ? "NVSwitch " + name_of(device) : name_of(device);
}

// Only what leads to a device.
class Tree {
 public:
  explicit Tree(const Graph& graph) : graph_(graph), wanted_(graph.pci.size()) {
    for (size_t i = 0; i < graph.pci.size(); ++i) {
      if (!graph.pci[i].device) continue;
      for (int at = static_cast<int>(i); at >= 0 && !wanted_[at]; at = graph.pci[at].parent) wanted_[at] = true;
    }
    for (size_t i = 0; i < graph.pci.size(); ++i)
      if (wanted_[i]) children_[graph.pci[i].parent].push_back(static_cast<int>(i));
  }

  std::string below(int parent, int depth) const {
    std::string out;
    const auto at = children_.find(parent);
    if (at == children_.end()) return out;
    for (const int child : at->second) out += line(child, depth) + below(child, depth + 1);
    return out;
  }

  std::string roots_of(int numa) const {
    std::string out;
    const auto at = children_.find(-1);
    if (at == children_.end()) return out;
    for (const int root : at->second)
      if (graph_.pci[root].numa == numa) out += line(root, 1) + below(root, 2);
    return out;
  }

 private:
  std::string line(int node, int depth) const {
    const auto& n = graph_.pci[node];
    std::string out(2 * depth, ' ');
    out += n.kind == PciNode::Kind::kHostBridge ? "host bridge" : n.kind == PciNode::Kind::kBridge ? "bridge" : "";
    if (!n.bus_id.empty()) out += (out.back() == ' ' ? "" : " ") + n.bus_id;
    return out + (n.device ? " " + words(graph_, *n.device) : "") + "\n";
  }

  const Graph& graph_;
  std::vector<bool> wanted_;
  std::map<int, std::vector<int>> children_;
};

std::string numa_line(const NumaNode& node) {
  std::string out = fmt::format("NUMA node {}", node.id);
  if (node.cpus) out += ", CPUs " + (node.cpus.value->empty() ? "none" : *node.cpus);
  if (node.memory_bytes) out += fmt::format(", {:.1f} GiB", *node.memory_bytes / 1073741824.0);
  return out + "\n";
}

// Devices that no PCIe tree holds, as where only a matrix is known.
std::string unplaced(const Graph& graph, int numa) {
  const auto placed = [&](Device device) {
    return std::any_of(graph.pci.begin(), graph.pci.end(), [&](const PciNode& n) { return n.device == device; });
  };
  std::string out;
  for (const auto& g : graph.gpus)
    if (g.numa.value.value_or(-1) == numa && !placed(gpu(g.index))) out += "  " + gpu_words(graph, g) + "\n";
  for (const auto& n : graph.nics)
    if (n.numa.value.value_or(-1) == numa && !placed(nic(n.index))) out += "  " + nic_words(n) + "\n";
  return out;
}

}  // namespace

std::string to_tree(const Graph& graph) {
  std::string out;
  for (const auto& c : graph.cpus) {
    if (!c.model && !c.vendor) continue;
    out += fmt::format("CPU {}{}{}\n", c.package, c.vendor ? ": " + *c.vendor : "", c.model ? " " + *c.model : "");
  }
  const Tree tree(graph);
  std::set<int> others;  // nodes that only a device names; -1 is not known
  for (const auto& node : graph.pci) others.insert(node.numa);
  for (const auto& g : graph.gpus) others.insert(g.numa.value.value_or(-1));
  for (const auto& n : graph.nics) others.insert(n.numa.value.value_or(-1));
  for (const auto& node : graph.numa_nodes) {
    out += numa_line(node) + tree.roots_of(node.id) + unplaced(graph, node.id);
    others.erase(node.id);
  }
  for (const int numa : others) {
    const std::string devices = tree.roots_of(numa) + unplaced(graph, numa);
    if (!devices.empty()) out += (numa < 0 ? "NUMA node not known" : fmt::format("NUMA node {}", numa)) + "\n" + devices;
  }
  return out;
}

}  // namespace muster::comm::topology
