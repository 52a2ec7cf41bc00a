#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "comm/topology/graph.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

class Merger {
 public:
  Merger(Graph& into, const Graph& other) : into_(into), other_(other) {}

  void merge() {
    for (const auto& gpu : other_.gpus) merge_gpu(gpu);
    for (const auto& nic : other_.nics) merge_nic(nic);
    for (const auto& sw : other_.switches) merge_switch(sw);
    for (const auto& node : other_.numa_nodes) merge_numa(node);
    for (const auto& cpu : other_.cpus) merge_cpu(cpu);
    merge_links();
    for (const auto& [pair, path] : other_.paths) into_.add_path(mapped(pair.first), mapped(pair.second), *path, path.source);
    for (const auto& [pair, status] : other_.p2p) merge_p2p(pair.first, pair.second, status);
    if (into_.pci.empty()) take_tree();
    into_.channels.insert(into_.channels.end(), other_.channels.begin(), other_.channels.end());
    into_.findings.insert(into_.findings.end(), other_.findings.begin(), other_.findings.end());
  }

 private:
  Device mapped(Device device) const {
    const auto at = places_.find(device);
    return at == places_.end() ? device : at->second;
  }

  template <typename T>
  void fact(const std::string& where, const char* what, Fact<T>& mine, const Fact<T>& theirs) {
    if (!theirs) return;
    if (!mine) {
      mine = theirs;
    } else if (*mine != *theirs) {
      into_.add_finding(where, fmt::format("{} {} ({})", what, *theirs, name_of(theirs.source)),
                        fmt::format("{} ({})", *mine, name_of(mine.source)));
    }
  }

  // UUIDs decide, then bus ids, then the index; a GPU that has another id than the one at its index is a new one.
  Gpu* find(const Gpu& gpu) {
    const auto where = [&](auto same) {
      const auto at = std::find_if(into_.gpus.begin(), into_.gpus.end(), same);
      return at == into_.gpus.end() ? nullptr : &*at;
    };
    if (Gpu* g = where([&](const Gpu& g) { return g.uuid && g.uuid.value == gpu.uuid.value; })) return g;
    if (Gpu* g = where([&](const Gpu& g) { return g.bus_id && g.bus_id.value == gpu.bus_id.value; })) return g;
    return where([&](const Gpu& g) {
      const bool other_uuid = g.uuid && gpu.uuid, other_bus = g.bus_id && gpu.bus_id;
      return g.index == gpu.index && !other_uuid && !other_bus;
    });
  }

  void merge_gpu(const Gpu& theirs) {
    Gpu* mine = find(theirs);
    if (!mine) {
      Gpu copy = theirs;
      while (into_.find_gpu(copy.index)) ++copy.index;
      if (!into_.gpus.empty())
        into_.add_finding(name_of(gpu(theirs.index)), "a GPU that other sources do not show", "the same GPUs in all");
      places_[gpu(theirs.index)] = gpu(copy.index);
      into_.gpus.push_back(std::move(copy));
      return;
    }
    places_[gpu(theirs.index)] = gpu(mine->index);
    const std::string where = name_of(gpu(mine->index));
    fact(where, "UUID", mine->uuid, theirs.uuid);
    fact(where, "bus id", mine->bus_id, theirs.bus_id);
    fact(where, "model", mine->model, theirs.model);
    fact(where, "NUMA node", mine->numa, theirs.numa);
    merge_cpus(where, mine->cpus, theirs.cpus);
    fact(where, "PCIe generation", mine->pcie_generation, theirs.pcie_generation);
    fact(where, "PCIe width", mine->pcie_width, theirs.pcie_width);
    fact(where, "PCIe width now", mine->pcie_width_now, theirs.pcie_width_now);
    fact(where, "compute capability", mine->compute_capability, theirs.compute_capability);
    fact(where, "MIG", mine->mig, theirs.mig);
    fact(where, "fabric state", mine->fabric, theirs.fabric);
    fact(where, "fabric clique", mine->fabric_clique, theirs.fabric_clique);
    fact(where, "module", mine->module, theirs.module);
    if (mine->slices.empty()) mine->slices = theirs.slices;
  }

  // NVML lists what a job may use, Linux all CPUs near the GPU: a part of the other is no disagreement.
  void merge_cpus(const std::string& where, Fact<std::string>& mine, const Fact<std::string>& theirs) {
    const auto ours = parse_cpu_list(mine.value.value_or("")), other = parse_cpu_list(theirs.value.value_or(""));
    const bool part = ours && other &&
                      (std::includes(ours->begin(), ours->end(), other->begin(), other->end()) ||
                       std::includes(other->begin(), other->end(), ours->begin(), ours->end()));
    if (!mine || !part) fact(where, "CPUs", mine, theirs);
  }

  void merge_nic(const Nic& theirs) {
    const auto same = [&](const Nic& n) {
      if (n.bus_id && theirs.bus_id) return *n.bus_id == *theirs.bus_id && (!n.name || !theirs.name || *n.name == *theirs.name);
      return n.name && theirs.name ? *n.name == *theirs.name : n.index == theirs.index && !n.name && !n.bus_id;
    };
    const auto mine = std::find_if(into_.nics.begin(), into_.nics.end(), same);
    if (mine == into_.nics.end()) {
      Nic copy = theirs;
      copy.index = static_cast<int>(into_.nics.size());
      places_[nic(theirs.index)] = nic(copy.index);
      into_.nics.push_back(std::move(copy));
      return;
    }
    places_[nic(theirs.index)] = nic(mine->index);
    const std::string where = name_of(nic(mine->index));
    fact(where, "name", mine->name, theirs.name);
    fact(where, "bus id", mine->bus_id, theirs.bus_id);
    fact(where, "interface", mine->interface, theirs.interface);
    fact(where, "NUMA node", mine->numa, theirs.numa);
    fact(where, "Mbit/s", mine->mbits_per_s, theirs.mbits_per_s);
    fact(where, "state", mine->state, theirs.state);
    fact(where, "RDMA", mine->rdma, theirs.rdma);
  }

  void merge_switch(const NvSwitch& theirs) {
    for (const auto& mine : into_.switches) {
      if (mine.bus_id.value != theirs.bus_id.value) continue;
      places_[nvswitch(theirs.index)] = nvswitch(mine.index);
      return;
    }
    const int index = static_cast<int>(into_.switches.size());
    places_[nvswitch(theirs.index)] = nvswitch(index);
    into_.switches.push_back({index, theirs.bus_id});
  }

  void merge_numa(const NumaNode& theirs) {
    for (auto& mine : into_.numa_nodes) {
      if (mine.id != theirs.id) continue;
      const std::string where = "NUMA" + std::to_string(mine.id);
      fact(where, "CPUs", mine.cpus, theirs.cpus);
      fact(where, "bytes", mine.memory_bytes, theirs.memory_bytes);
      return;
    }
    into_.numa_nodes.push_back(theirs);
    std::sort(into_.numa_nodes.begin(), into_.numa_nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  }

  void merge_cpu(const Cpu& theirs) {
    for (const auto& mine : into_.cpus)
      if (mine.package == theirs.package) return;  // NCCL counts NUMA nodes here, others packages: not comparable
    into_.cpus.push_back(theirs);
  }

  // Which switch a link ends in is not told by all; those compare by how many links a GPU has.
  void merge_links() {
    std::map<int, bool> known;
    for (const auto& gpu : into_.gpus) known[gpu.index] = into_.switch_links(gpu.index) > 0;
    for (auto link : other_.links) {
      link.a = mapped(link.a);
      link.b = mapped(link.b);
      const bool to_switch = link.a.kind == DeviceKind::kGpu && link.b.kind == DeviceKind::kSwitch;
      if (!to_switch || !known[link.a.index]) into_.add_link(link);
    }
    for (const auto& gpu : other_.gpus) {
      const int theirs = other_.switch_links(gpu.index), index = mapped(topology::gpu(gpu.index)).index;
      const int mine = into_.switch_links(index);
      if (theirs > 0 && mine != theirs)
        into_.add_finding(name_of(topology::gpu(index)), fmt::format("{} links to switches", theirs), fmt::format("{}", mine));
    }
  }

  void merge_p2p(int a, int b, const Fact<std::string>& status) {
    const int from = mapped(gpu(a)).index, to = mapped(gpu(b)).index;
    fact(fmt::format("GPU{} to GPU{}", from, to), "P2P", into_.p2p[{from, to}], status);
  }

  void take_tree() {
    into_.pci = other_.pci;
    for (auto& node : into_.pci)
      if (node.device) node.device = mapped(*node.device);
  }

  Graph& into_;
  const Graph& other_;
  std::map<Device, Device> places_;  // theirs -> mine
};

}  // namespace

void merge(Graph& into, const Graph& other) {
  Merger(into, other).merge();
  std::sort(into.gpus.begin(), into.gpus.end(), [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
}

}  // namespace muster::comm::topology
