#include <algorithm>

#include <fmt/format.h>

#include "comm/topology/graph.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

// "a=1 b=2 (sysfs); c=3 (NVML)": one bracket for each run of facts of one source.
class Line {
 public:
  explicit Line(std::string head) : text_(std::move(head)) {}

  template <typename T>
  Line& operator()(const char* key, const Fact<T>& fact) {
    if (fact) add(fmt::format("{}={}", key, *fact), fact.source);
    return *this;
  }

  Line& operator()(const char* key, const Fact<bool>& fact) {
    if (fact) add(fmt::format("{}={}", key, *fact ? "on" : "off"), fact.source);
    return *this;
  }

  Line& add(const std::string& words, Source source) {
    if (source != source_ && source_ != Source::kNone) text_ += fmt::format(" ({});", name_of(source_));
    source_ = source;
    text_ += " " + words;
    return *this;
  }

  std::string done() {
    if (source_ != Source::kNone) text_ += fmt::format(" ({})", name_of(source_));
    return text_ + "\n";
  }

 private:
  std::string text_;
  Source source_ = Source::kNone;
};

std::string gpu_line(const Gpu& g) {
  Line line(name_of(gpu(g.index)));
  line("bus", g.bus_id)("numa", g.numa)("cpus", g.cpus)("uuid", g.uuid)("model", g.model)("pcie_generation", g.pcie_generation);
  line("pcie_width", g.pcie_width)("pcie_width_now", g.pcie_width_now)("sm", g.compute_capability)("mig", g.mig);
  line("fabric", g.fabric)("fabric_clique", g.fabric_clique)("module", g.module);
  std::string out = line.done();
  for (const auto& slice : g.slices) out += fmt::format("  MIG {} {}\n", slice.profile, slice.uuid);
  return out;
}

std::string nic_line(const Nic& n) {
  Line line(name_of(nic(n.index)));
  line("name", n.name)("bus", n.bus_id)("interface", n.interface)("numa", n.numa)("mbit/s", n.mbits_per_s)("state", n.state)(
      "rdma", n.rdma);
  return line.done();
}

std::string nodes_text(const Graph& graph) {
  std::string out;
  for (const auto& node : graph.numa_nodes)
    out += Line(fmt::format("NUMA{}", node.id))("cpus", node.cpus)("bytes", node.memory_bytes).done();
  for (const auto& c : graph.cpus)
    out += Line(fmt::format("CPU{}", c.package))("vendor", c.vendor)("model", c.model)("arch", c.arch)("cpus", c.cpus).done();
  for (const auto& g : graph.gpus) out += gpu_line(g);
  for (const auto& n : graph.nics) out += nic_line(n);
  for (const auto& s : graph.switches) out += Line(name_of(nvswitch(s.index)))("bus", s.bus_id).done();
  return out;
}

std::string links_text(const Graph& graph) {
  std::string out;
  auto links = graph.links;
  std::stable_sort(links.begin(), links.end(),
                   [](const Link& x, const Link& y) { return std::pair(x.a, x.b) < std::pair(y.a, y.b); });
  for (const auto& link : links) {
    Line line(fmt::format("link {} {}", name_of(link.a), name_of(link.b)));
    line.add(fmt::format("{}{}", name_of(link.kind), link.count), link.source)("generation", link.generation)("gb/s",
                                                                                                              link.gbytes_per_s);
    out += line.done();
  }
  return out;
}

std::vector<Device> devices_of(const Graph& graph, bool plain_nics) {
  std::vector<Device> out;
  for (const auto& g : graph.gpus) out.push_back(gpu(g.index));
  for (const auto& n : graph.nics)
    if (plain_nics || n.rdma.value.value_or(true)) out.push_back(nic(n.index));
  return out;
}

std::string cells_text(const Graph& graph) {
  const auto devices = devices_of(graph, true);
  if (devices.size() < 2) return "";
  std::string out = "matrix";
  for (const auto& device : devices) out += " " + name_of(device);
  for (const auto& row : devices) {
    out += "\n" + name_of(row);
    for (const auto& column : devices) out += " " + graph.cell(row, column);
  }
  return out + "\n";
}

std::string paths_source(const Graph& graph) {
  std::map<Source, int> counts;
  for (const auto& [pair, path] : graph.paths) ++counts[path.source];
  std::string out;
  for (const auto& [source, count] : counts) out += fmt::format("paths {} ({})\n", count, name_of(source));
  return out;
}

std::string legend(const Graph& graph, const std::vector<Device>& devices) {
  std::string out =
      "\nLegend:\n\n"
      "  X    = Self\n"
      "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
      "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
      "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
      "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
      "  PIX  = Connection traversing at most a single PCIe bridge\n"
      "  NV#  = Connection traversing a bonded set of # NVLinks\n";
  const bool xgmi = std::any_of(graph.links.begin(), graph.links.end(), [](const Link& l) { return l.kind == LinkKind::kXgmi; });
  if (xgmi) out += "  XGMI# = Connection traversing # xGMI links\n";
  const bool unknown = std::any_of(devices.begin(), devices.end(), [&](Device a) {
    return std::any_of(devices.begin(), devices.end(), [&](Device b) { return graph.cell(a, b) == "?"; });
  });
  if (unknown) out += "  ?    = Not told by the source\n";
  std::string names;
  for (const auto& device : devices)
    if (device.kind == DeviceKind::kNic && graph.nics[device.index].name)
      names += fmt::format("  {}: {}\n", name_of(device), *graph.nics[device.index].name);
  return names.empty() ? out : out + "\nNIC Legend:\n\n" + names;
}

void append_row(std::string& out, const Graph& graph, Device row, const std::vector<Device>& devices) {
  out += name_of(row);
  for (const auto& column : devices) out += row == column ? "\t X " : "\t" + graph.cell(row, column);
  if (row.kind != DeviceKind::kGpu) {
    out += "\t\t\t\t\n";
    return;
  }
  const Gpu& g = *graph.find_gpu(row.index);
  out += fmt::format("\t{}\t{}\t\tN/A\n", g.cpus ? *g.cpus : "", g.numa ? std::to_string(*g.numa) : "N/A");
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out = nodes_text(graph) + links_text(graph) + cells_text(graph) + paths_source(graph);
  for (const auto& [pair, status] : graph.p2p)
    out += fmt::format("p2p GPU{} GPU{} {} ({})\n", pair.first, pair.second, *status, name_of(status.source));
  for (const auto& channel : graph.channels) {
    out += fmt::format("{} at {:g} GB/s:", channel.pattern, channel.gbytes_per_s);
    for (const int g : channel.gpus) out += fmt::format(" {}", g);
    out += "\n";
  }
  for (const auto& finding : graph.findings) out += "finding " + finding.text() + "\n";
  return out;
}

std::string to_matrix(const Graph& graph) {
  const auto devices = devices_of(graph, false);
  if (devices.empty()) return "";
  std::string out;
  for (const auto& device : devices) out += "\t" + name_of(device);
  out += "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n";
  for (const auto& row : devices) append_row(out, graph, row, devices);
  return out + legend(graph, devices);
}

}  // namespace muster::comm::topology
