#include "comm/topology/graph.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster::comm::topology {
namespace {

constexpr const char* kSourceNames[] = {"nobody",
                                        "NCCL topology XML",
                                        "NCCL graph XML",
                                        "nvidia-smi topo -m",
                                        "nvidia-smi topo -p2p",
                                        "nvidia-smi -q -x",
                                        "nvidia-smi -L",
                                        "hwloc XML",
                                        "sysfs",
                                        "NVML"};
constexpr const char* kPathNames[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
constexpr const char* kLinkNames[] = {"NV", "XGMI", "C2C"};
constexpr const char* kDeviceNames[] = {"GPU", "NIC", "SW", "CPU"};

std::string pair_name(Device a, Device b) { return name_of(a) + "-" + name_of(b); }

std::string count_text(const Link& link) {
  return fmt::format("{}{} ({})", name_of(link.kind), link.count, name_of(link.source));
}

// Facts that only one of two reports of a link has.
void complete(Link& known, const Link& more) {
  if (!known.generation) known.generation = more.generation;
  if (!known.gbytes_per_s) known.gbytes_per_s = more.gbytes_per_s;
}

}  // namespace

const char* name_of(Source source) { return kSourceNames[static_cast<int>(source)]; }
const char* name_of(PathClass path) { return kPathNames[static_cast<int>(path)]; }
const char* name_of(LinkKind kind) { return kLinkNames[static_cast<int>(kind)]; }
std::string name_of(Device device) { return kDeviceNames[static_cast<int>(device.kind)] + std::to_string(device.index); }

std::optional<PathClass> path_class(const std::string& word) {
  for (int i = 0; i < 5; ++i)
    if (word == kPathNames[i]) return static_cast<PathClass>(i);
  return word == "SOC" ? std::optional(PathClass::kSys) : std::nullopt;
}

std::string Finding::text() const { return fmt::format("{}: found {}; wanted {}", where, found, wanted); }

void Graph::add_finding(std::string where, std::string found, std::string wanted) {
  findings.push_back({std::move(where), std::move(found), std::move(wanted)});
}

void Graph::add_link(Link link) {
  if (link.b < link.a) std::swap(link.a, link.b);
  for (auto& known : links) {
    if (known.a != link.a || known.b != link.b || known.kind != link.kind) continue;
    if (known.count != link.count) add_finding(pair_name(link.a, link.b), count_text(link), count_text(known));
    return complete(known, link);
  }
  links.push_back(std::move(link));
}

void Graph::add_path(Device a, Device b, PathClass path, Source source, const std::string& where) {
  if (b < a) std::swap(a, b);
  auto& known = paths[{a, b}];
  if (!known) {
    known = {path, source};
  } else if (*known != path) {
    add_finding(where.empty() ? pair_name(a, b) : where + ": " + pair_name(a, b),
                fmt::format("{} ({})", name_of(path), name_of(source)),
                fmt::format("{} ({})", name_of(*known), name_of(known.source)));
  }
}

const Gpu* Graph::find_gpu(int index) const {
  for (const auto& gpu : gpus)
    if (gpu.index == index) return &gpu;
  return nullptr;
}

const Link* Graph::find_link(Device a, Device b) const {
  if (b < a) std::swap(a, b);
  for (const auto& link : links)
    if (link.a == a && link.b == b && link.kind != LinkKind::kC2c) return &link;
  return nullptr;
}

int Graph::switch_links(int index) const {
  int sum = 0;
  for (const auto& link : links)
    if (link.kind == LinkKind::kNvLink && link.a == gpu(index) && link.b.kind == DeviceKind::kSwitch) sum += link.count;
  return sum;
}

int Graph::joined_by(int a, int b) const {
  if (const auto* direct = find_link(gpu(a), gpu(b))) return direct->count;
  return std::min(switch_links(a), switch_links(b));
}

std::string Graph::cell(Device a, Device b) const {
  if (a == b) return "X";
  if (b < a) std::swap(a, b);
  if (a.kind == DeviceKind::kGpu && b.kind == DeviceKind::kGpu) {
    const auto* direct = find_link(a, b);
    if (const int count = joined_by(a.index, b.index))
      return name_of(direct ? direct->kind : LinkKind::kNvLink) + std::to_string(count);
  }
  const auto path = paths.find({a, b});
  return path == paths.end() ? "?" : name_of(*path->second);
}

void check_health(Graph& graph) {
  std::map<std::string, std::pair<int, int>> most;  // model -> links, GPU
  const auto links_of = [&](const Gpu& g) {
    int sum = 0;
    for (const auto& link : graph.links)
      if (link.kind != LinkKind::kC2c && (link.a == gpu(g.index) || link.b == gpu(g.index))) sum += link.count;
    return sum;
  };
  for (const auto& g : graph.gpus) {
    auto& best = most[g.model.value.value_or("")];
    best = std::max(best, {links_of(g), -g.index});
  }
  for (const auto& g : graph.gpus) {
    const auto [wanted, peer] = most[g.model.value.value_or("")];
    if (const int links = links_of(g); links < wanted) {
      graph.add_finding(name_of(gpu(g.index)), fmt::format("{} links to other GPUs and switches", links),
                        fmt::format("{}, as {} has", wanted, name_of(gpu(-peer))));
    }
    if (g.pcie_width && g.pcie_width_now && *g.pcie_width_now < *g.pcie_width) {
      graph.add_finding(name_of(gpu(g.index)), fmt::format("a PCIe link {} lanes wide", *g.pcie_width_now),
                        fmt::format("{} lanes", *g.pcie_width));
    }
    if (g.fabric && *g.fabric != "Completed") {
      graph.add_finding(name_of(gpu(g.index)), "NVLink fabric state " + *g.fabric,
                        "Completed; is the fabric manager (or IMEX) running?");
    }
  }
}

}  // namespace muster::comm::topology
