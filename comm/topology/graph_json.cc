#include <nlohmann/json.hpp>

#include "comm/topology/graph.h"

namespace muster::comm::topology {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
void put(Json& object, const char* key, const Fact<T>& fact) {
  if (fact) object[key] = {{"value", *fact}, {"source", name_of(fact.source)}};
}

Json json_of(const Gpu& g) {
  Json out{{"name", name_of(gpu(g.index))}, {"index", g.index}};
  put(out, "uuid", g.uuid);
  put(out, "bus_id", g.bus_id);
  put(out, "model", g.model);
  put(out, "numa_node", g.numa);
  put(out, "cpus", g.cpus);
  put(out, "pcie_generation", g.pcie_generation);
  put(out, "pcie_width", g.pcie_width);
  put(out, "pcie_width_now", g.pcie_width_now);
  put(out, "compute_capability", g.compute_capability);
  put(out, "mig", g.mig);
  put(out, "fabric_state", g.fabric);
  put(out, "fabric_clique", g.fabric_clique);
  put(out, "module", g.module);
  for (const auto& slice : g.slices) out["mig_devices"].push_back({{"profile", slice.profile}, {"uuid", slice.uuid}});
  return out;
}

Json json_of(const Nic& n) {
  Json out{{"name", name_of(nic(n.index))}, {"index", n.index}};
  put(out, "device", n.name);
  put(out, "bus_id", n.bus_id);
  put(out, "interface", n.interface);
  put(out, "numa_node", n.numa);
  put(out, "mbits_per_s", n.mbits_per_s);
  put(out, "state", n.state);
  put(out, "rdma", n.rdma);
  return out;
}

Json json_of(const NumaNode& node) {
  Json out{{"id", node.id}};
  put(out, "cpus", node.cpus);
  put(out, "memory_bytes", node.memory_bytes);
  return out;
}

Json json_of(const Cpu& c) {
  Json out{{"package", c.package}};
  put(out, "vendor", c.vendor);
  put(out, "model", c.model);
  put(out, "architecture", c.arch);
  put(out, "cpus", c.cpus);
  return out;
}

Json json_of(const NvSwitch& s) {
  Json out{{"name", name_of(nvswitch(s.index))}};
  put(out, "bus_id", s.bus_id);
  return out;
}

Json json_of(const PciNode& node) {
  static constexpr const char* kKinds[] = {"host bridge", "bridge", "device"};
  Json out{{"kind", kKinds[static_cast<int>(node.kind)]}, {"bus_id", node.bus_id}, {"parent", node.parent}};
  if (node.numa >= 0) out["numa_node"] = node.numa;
  if (node.device) out["device"] = name_of(*node.device);
  return out;
}

Json json_of(const Link& link) {
  Json out{{"a", name_of(link.a)},
           {"b", name_of(link.b)},
           {"kind", name_of(link.kind)},
           {"count", link.count},
           {"source", name_of(link.source)}};
  put(out, "generation", link.generation);
  put(out, "gbytes_per_s", link.gbytes_per_s);
  return out;
}

Json json_of(const Finding& finding) { return {{"where", finding.where}, {"found", finding.found}, {"wanted", finding.wanted}}; }
Json json_of(const Channel& c) { return {{"pattern", c.pattern}, {"gpus", c.gpus}, {"gbytes_per_s", c.gbytes_per_s}}; }

template <typename T>
Json list_of(const std::vector<T>& items) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(json_of(item));
  return out;
}

Json cells_of(const Graph& graph) {
  std::vector<Device> devices;
  for (const auto& g : graph.gpus) devices.push_back(gpu(g.index));
  for (const auto& n : graph.nics) devices.push_back(nic(n.index));
  Json out = Json::object();
  for (const auto& a : devices)
    for (const auto& b : devices) out[name_of(a)][name_of(b)] = graph.cell(a, b);
  return out;
}

}  // namespace

std::string to_json(const Graph& graph) {
  Json out{{"gpus", list_of(graph.gpus)},        {"nics", list_of(graph.nics)},         {"numa_nodes", list_of(graph.numa_nodes)},
           {"cpus", list_of(graph.cpus)},        {"switches", list_of(graph.switches)}, {"links", list_of(graph.links)},
           {"matrix", cells_of(graph)},          {"pci", list_of(graph.pci)},           {"channels", list_of(graph.channels)},
           {"findings", list_of(graph.findings)}};
  out["paths"] = Json::array();
  for (const auto& [pair, path] : graph.paths)
    out["paths"].push_back(
        {{"a", name_of(pair.first)}, {"b", name_of(pair.second)}, {"class", name_of(*path)}, {"source", name_of(path.source)}});
  out["p2p"] = Json::array();
  for (const auto& [pair, status] : graph.p2p)
    out["p2p"].push_back({{"from", pair.first}, {"to", pair.second}, {"status", *status}, {"source", name_of(status.source)}});
  // Names come from outside and need not be UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::comm::topology
