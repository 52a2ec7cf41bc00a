#include "comm/topology/bandwidth.h"

#include <algorithm>
#include <climits>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::comm::topology {
namespace {

// One link, one direction, GB/s after protocol overhead. V100: measured, one-link all-reduce of the vTrain tables; the others are
// the values NCCL (RCCL for xGMI) plans with.
struct LinkRate {
  const char* name;
  int generation;      // of NVLink
  int sm_from, sm_to;  // compute capability
  double gbytes_per_s;
};
constexpr LinkRate kNvLinkRates[] = {{"NVLink 1", 1, 60, 62, 18.0}, {"NVLink 2", 2, 70, 75, 22.6},
                                     {"NVLink 3", 3, 80, 80, 20.0}, {"NVLink 3 of sm_86", 0, 86, 89, 12.0},
                                     {"NVLink 4", 4, 90, 99, 20.6}, {"NVLink 5", 5, 100, 199, 40.1}};
constexpr std::pair<const char*, double> kXgmiRates[] = {{"gfx906", 24.0}, {"gfx908", 36.0}, {"gfx90a", 36.0},
                                                         {"gfx910", 36.0}, {"gfx94", 48.0},  {"gfx95", 48.0}};
constexpr std::pair<const char*, int> kModels[] = {{"P100", 60}, {"V100", 70},  {"A100", 80},  {"A800", 80},
                                                   {"3090", 86}, {"A6000", 86}, {"H100", 90},  {"H200", 90},
                                                   {"H800", 90}, {"GH200", 90}, {"B200", 100}, {"B300", 100}};

struct Rate {
  double gbytes_per_s = 0;
  std::string why;
};

const LinkRate* by_generation(int generation) {
  const auto at =
      std::find_if(std::begin(kNvLinkRates), std::end(kNvLinkRates), [&](const auto& r) { return r.generation == generation; });
  return at == std::end(kNvLinkRates) ? nullptr : at;
}

const LinkRate* by_capability(int sm) {
  const auto at = std::find_if(std::begin(kNvLinkRates), std::end(kNvLinkRates),
                               [&](const auto& r) { return r.sm_from <= sm && sm <= r.sm_to; });
  return at == std::end(kNvLinkRates) ? nullptr : at;
}

int links_of(const Graph& graph, int index) {
  int sum = 0;
  for (const auto& link : graph.links)
    if (link.kind != LinkKind::kC2c && (link.a == gpu(index) || link.b == gpu(index))) sum += link.count;
  return sum;
}

// The last resort: P100 has 4 links, V100 6, A100 12, H100 18; a pair with four bonded ones is a workstation's bridge.
Rate by_count(const Graph& graph) {
  int most = 0, widest = 0;
  for (const auto& g : graph.gpus) most = std::max(most, links_of(graph, g.index));
  for (const auto& link : graph.links) widest = std::max(widest, link.count);
  const int sm = most <= 4 ? (widest == 4 ? 86 : 60) : most <= 6 ? 70 : most <= 12 ? 80 : 90;
  const auto& rate = *by_capability(sm);
  return {rate.gbytes_per_s, fmt::format("{}, assumed from {} links a GPU", rate.name, most)};
}

Rate xgmi_rate(const Graph& graph) {
  for (const auto& g : graph.gpus)
    for (const auto& [prefix, rate] : kXgmiRates)
      if (g.model && g.model.value->starts_with(prefix)) return {rate, "xGMI of " + *g.model};
  return {24.0, "xGMI of an unknown model, the slowest assumed"};
}

Rate link_rate(const Graph& graph) {
  for (const auto& link : graph.links) {
    if (link.kind == LinkKind::kXgmi) return xgmi_rate(graph);
    const auto* rate = link.generation ? by_generation(*link.generation) : nullptr;
    if (rate) return {rate->gbytes_per_s, fmt::format("{} ({})", rate->name, name_of(link.generation.source))};
  }
  for (const auto& g : graph.gpus) {
    const auto* rate = g.compute_capability ? by_capability(*g.compute_capability) : nullptr;
    if (rate) return {rate->gbytes_per_s, fmt::format("{}, of sm_{}", rate->name, *g.compute_capability)};
    for (const auto& [model, sm] : kModels)
      if (g.model && g.model.value->find(model) != std::string::npos)
        return {by_capability(sm)->gbytes_per_s, fmt::format("{}, of {}", by_capability(sm)->name, *g.model)};
  }
  return by_count(graph);
}

bool has_links(const Graph& graph) {
  return std::any_of(graph.links.begin(), graph.links.end(), [](const Link& l) { return l.kind != LinkKind::kC2c; });
}

std::vector<std::vector<int>> capacity_of(const Graph& graph, const std::vector<int>& gpus) {
  std::vector<std::vector<int>> out(gpus.size(), std::vector<int>(gpus.size()));
  for (size_t i = 0; i < gpus.size(); ++i)
    for (size_t j = 0; j < gpus.size(); ++j) {
      const auto* link = i == j ? nullptr : graph.find_link(gpu(gpus[i]), gpu(gpus[j]));
      out[i][j] = link ? link->count : 0;
    }
  return out;
}

AllReduceEstimate over_links(const Graph& graph, const std::vector<int>& gpus) {
  AllReduceEstimate out{gpus, 0, 0, ""};
  if (!has_links(graph)) return out;
  const double rate = link_rate(graph).gbytes_per_s;
  int switched = INT_MAX;
  for (const int g : gpus) switched = std::min(switched, graph.switch_links(g));
  const char* kind = graph.links[0].kind == LinkKind::kXgmi ? "xGMI" : "NVLink";
  if (switched > 0) return {gpus, switched * rate, switched, fmt::format("{} rings over NVSwitches", switched)};
  const auto capacity = capacity_of(graph, gpus);
  const int rings = pack_rings(capacity);
  if (rings > 0) return {gpus, rings * rate, rings, fmt::format("{} {} over {}", rings, rings == 1 ? "ring" : "rings", kind)};
  const int trees = pack_chains(capacity);
  const double n = static_cast<double>(gpus.size());
  if (trees > 0) {
    return {gpus, trees * rate * (n - 1) / n, trees,
            fmt::format("{} {} over {}; no ring closes", trees, trees == 1 ? "tree" : "trees", kind)};
  }
  return out;
}

// GB/s of a slot: NCCL's 12 for Gen3 x16, doubled by each generation.
double slot_rate(const Gpu& g) {
  const int generation = std::clamp(g.pcie_generation.value.value_or(3), 1, 6), lanes = g.pcie_width.value.value_or(16);
  return 12.0 * (1 << (generation - 1)) / 4 * lanes / 16;
}

bool intel(const Graph& graph) { return !graph.cpus.empty() && graph.cpus[0].vendor.value == "GenuineIntel"; }

// What one step of the ring carries; NCCL's table of CPU interconnects in coarse.
double step_rate(const Graph& graph, const Gpu& a, const Gpu& b) {
  const double slot = std::min(slot_rate(a), slot_rate(b));
  const auto path = graph.paths.find({std::min(gpu(a.index), gpu(b.index)), std::max(gpu(a.index), gpu(b.index))});
  if (path == graph.paths.end()) return 0;
  if (*path->second <= PathClass::kPxb) return slot;
  const double through_cpu = intel(graph) ? slot * 5 / 6 : slot;
  if (*path->second <= PathClass::kNode) return through_cpu;
  const bool amd = !graph.cpus.empty() && graph.cpus[0].vendor.value == "AuthenticAMD";
  return std::min(through_cpu, amd ? 16.0 : 10.0);
}

AllReduceEstimate over_pcie(const Graph& graph, std::vector<int> gpus) {
  AllReduceEstimate out{gpus, 0, 0, "the graph tells no path"};
  std::stable_sort(gpus.begin(), gpus.end(),
                   [&](int a, int b) { return graph.find_gpu(a)->numa.value < graph.find_gpu(b)->numa.value; });
  double slowest = 1e9;
  for (size_t i = 0; i < gpus.size(); ++i)
    slowest = std::min(slowest, step_rate(graph, *graph.find_gpu(gpus[i]), *graph.find_gpu(gpus[(i + 1) % gpus.size()])));
  if (slowest <= 0) return out;
  return {out.gpus, slowest, 1, "1 ring over PCIe"};
}

std::string missing(const Graph& graph, const std::vector<AllReduceEstimate>& rows) {
  const bool unknown_slot = std::any_of(graph.gpus.begin(), graph.gpus.end(), [](const Gpu& g) { return !g.pcie_generation; });
  const bool pcie = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.how.ends_with("over PCIe"); });
  std::string out;
  if (!has_links(graph)) out = "no source names an NVLink; on a machine that has some the real figure is higher";
  if (unknown_slot && pcie) out += std::string(out.empty() ? "" : "; ") + "PCIe Gen3 x16 assumed where no source tells";
  return out;
}

}  // namespace

AllReduceEstimate estimate_all_reduce(const Graph& graph, const std::vector<int>& gpus) {
  if (gpus.size() < 2) return {gpus, 0, 0, "one GPU: nothing to do"};
  for (const int g : gpus)
    if (!graph.find_gpu(g)) return {gpus, 0, 0, fmt::format("no GPU{}", g)};
  auto linked = over_links(graph, gpus);
  auto pcie = over_pcie(graph, gpus);
  return linked.bus_gbytes_per_s >= pcie.bus_gbytes_per_s && linked.channels > 0 ? linked : pcie;
}

BandwidthTable estimate_first_gpus(const Graph& graph) {
  BandwidthTable out;
  if (has_links(graph)) {
    const Rate rate = link_rate(graph);
    out.link = fmt::format("{:g} GB/s each way a link: {}", rate.gbytes_per_s, rate.why);
  }
  std::vector<int> gpus;
  for (const auto& g : graph.gpus) {
    gpus.push_back(g.index);
    if (gpus.size() > 1) out.rows.push_back(estimate_all_reduce(graph, gpus));
  }
  if (!out.rows.empty()) out.note = missing(graph, out.rows);
  return out;
}

std::string to_text(const BandwidthTable& table) {
  if (table.rows.empty()) return "fewer than 2 GPUs: no all-reduce between GPUs of this machine\n";
  std::string out = "GPUs  all-reduce, GB/s of bus bandwidth\n";
  for (const auto& row : table.rows) {
    const std::string value = row.channels > 0 ? fmt::format("{:.1f}", row.bus_gbytes_per_s) : "?";
    out += fmt::format("{:>4}  {:>6}  {}\n", row.gpus.size(), value, row.how);
  }
  if (!table.link.empty()) out += table.link + "\n";
  return table.note.empty() ? out : out + table.note + "\n";
}

}  // namespace muster::comm::topology
