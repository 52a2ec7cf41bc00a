#include "comm/topology/pci_tree.h"

#include <algorithm>

namespace muster::comm::topology {
namespace {

// From the node's parent up to its host bridge.
std::vector<int> ancestors(const Graph& graph, int node) {
  std::vector<int> out;
  for (int at = graph.pci[node].parent; at >= 0; at = graph.pci[at].parent) out.push_back(at);
  return out;
}

// Numa node of the nearest node above that knows.
int numa_of(const Graph& graph, int node) {
  for (int at = node; at >= 0; at = graph.pci[at].parent)
    if (graph.pci[at].numa >= 0) return graph.pci[at].numa;
  return -1;
}

PathClass above_bridges(const Graph& graph, int a, int b, const std::vector<int>& up_a, const std::vector<int>& up_b) {
  const int root_a = up_a.empty() ? a : up_a.back(), root_b = up_b.empty() ? b : up_b.back();
  if (root_a == root_b) return PathClass::kPhb;
  const int numa = numa_of(graph, a);
  const bool one_node = numa == numa_of(graph, b) && numa >= 0;
  return one_node ? PathClass::kNode : PathClass::kSys;
}

}  // namespace

PciClass pci_class(const std::string& code) {
  const std::string digits = code.starts_with("0x") ? code.substr(2, 4) : code.substr(0, 4);
  if (digits == "0300" || digits == "0302" || digits == "0380" || digits == "1200") return PciClass::kGpu;
  if (digits == "0200" || digits == "0207" || digits == "0280") return PciClass::kNic;
  if (digits == "0680") return PciClass::kSwitch;
  return digits == "0604" ? PciClass::kBridge : PciClass::kOther;
}

std::optional<int> pcie_generation(const std::string& speed) {
  static constexpr std::pair<const char*, int> kSpeeds[] = {{"2.5", 1}, {"5", 2}, {"8", 3}, {"16", 4}, {"32", 5}, {"64", 6}};
  const std::string number = speed.substr(0, speed.find_first_not_of("0123456789."));
  for (const auto& [known, generation] : kSpeeds)
    if (number == known || number == std::string(known) + ".0") return generation;
  return std::nullopt;
}

PathClass path_between(const Graph& graph, int a, int b, SwitchShape shape) {
  const auto up_a = ancestors(graph, a), up_b = ancestors(graph, b);
  for (size_t steps_a = 0; steps_a < up_a.size(); ++steps_a) {
    if (graph.pci[up_a[steps_a]].kind != PciNode::Kind::kBridge) continue;
    const auto common = std::find(up_b.begin(), up_b.end(), up_a[steps_a]);
    if (common == up_b.end()) continue;
    // Below the common bridge: a downstream port each where ports are drawn, nothing where a switch is one node.
    const size_t between = std::max(steps_a, static_cast<size_t>(common - up_b.begin()));
    return between <= (shape == SwitchShape::kPortByPort ? 1u : 0u) ? PathClass::kPix : PathClass::kPxb;
  }
  return above_bridges(graph, a, b, up_a, up_b);
}

void add_tree_paths(Graph& graph, SwitchShape shape, Source source) {
  std::vector<int> places;
  for (size_t i = 0; i < graph.pci.size(); ++i)
    if (graph.pci[i].device && graph.pci[i].device->kind != DeviceKind::kSwitch) places.push_back(static_cast<int>(i));
  for (size_t i = 0; i < places.size(); ++i)
    for (size_t j = i + 1; j < places.size(); ++j)
      graph.add_path(*graph.pci[places[i]].device, *graph.pci[places[j]].device, path_between(graph, places[i], places[j], shape),
                     source);
}

}  // namespace muster::comm::topology
