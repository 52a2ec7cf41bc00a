#include <algorithm>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/pci_tree.h"
#include "comm/topology/readers.h"
#include "comm/topology/words.h"
#include "comm/topology/xml.h"

namespace muster::comm::topology {
namespace {

constexpr Source kSource = Source::kNcclXml;
constexpr int kMaxPciNodes = 4096;
constexpr size_t kMaxLinks = 16384;

class NcclReader {
 public:
  NcclReader(const std::string& file) : file_(file) {}

  Graph read(const XmlElement& system) {
    for (const auto& cpu : system.children) {
      if (cpu.name == "cpu") {
        read_cpu(cpu);
      } else if (cpu.name == "nic") {
        read_nic(cpu, -1);  // NCCL puts network devices without a PCI place there
      } else {
        odd(cpu, "<" + printable(cpu.name) + "> below <system>", "<cpu>");
      }
    }
    std::sort(graph_.numa_nodes.begin(), graph_.numa_nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    number_gpus();
    resolve_links();
    add_tree_paths(graph_, SwitchShape::kWhole, kSource);
    return std::move(graph_);
  }

 private:
  // Links name their far end by bus id, which may stand further down.
  struct Pending {
    int node, line;
    LinkKind kind;
    std::string target;
    bool to_switch;
    int count;
  };

  void odd(const XmlElement& element, std::string found, std::string wanted) {
    graph_.add_finding(fmt::format("{}:{}", file_, element.line), std::move(found), std::move(wanted));
  }

  std::string text_of(const XmlElement& element, const char* key) const {
    const auto* value = element.attribute(key);
    return value ? trimmed(*value) : "";
  }

  std::optional<int> number_of(const XmlElement& element, const char* key) {
    const auto* value = element.attribute(key);
    if (!value) return std::nullopt;
    const auto number = parse_int(trimmed(*value));
    if (!number && trimmed(*value) != "-1") odd(element, fmt::format("{}={}", key, in_quotes(*value)), "a number from 0");
    return number;
  }

  Fact<std::string> cpus_of(const XmlElement& cpu) {
    const std::string mask = text_of(cpu, "affinity");
    if (mask.empty()) return {};
    const auto cpus = parse_cpu_mask(mask);
    if (!cpus) odd(cpu, "affinity=" + in_quotes(mask), "32-bit hexadecimal words with commas between");
    check_groups(cpu, mask);
    if (mask_length_ == 0) mask_length_ = mask.size();
    if (mask.size() != mask_length_) {
      odd(cpu, fmt::format("an affinity mask of {} characters", mask.size()),
          fmt::format("{}, as the first has; it lost a digit", mask_length_));
    }
    return cpus ? Fact<std::string>{to_cpu_list(*cpus), kSource} : Fact<std::string>{};
  }

  // Linux prints all words but the first with 8 digits; a shorter one has lost a digit.
  void check_groups(const XmlElement& cpu, const std::string& mask) {
    for (size_t at = mask.find(','); at != std::string::npos;) {
      const size_t next = mask.find(',', at + 1);
      const std::string word = mask.substr(at + 1, next == std::string::npos ? next : next - at - 1);
      if (word.size() != 8) odd(cpu, "the affinity word " + in_quotes(word), "8 digits; CPUs above it may be shifted");
      at = next;
    }
  }

  void read_cpu(const XmlElement& element) {
    const auto id = number_of(element, "numaid");
    const int numa = id.value_or(-1);
    const int index = static_cast<int>(graph_.cpus.size());
    Cpu cpu;
    cpu.package = index;
    cpu.cpus = cpus_of(element);
    if (const auto vendor = text_of(element, "vendor"); !vendor.empty()) cpu.vendor = {vendor, kSource};
    if (const auto arch = text_of(element, "arch"); !arch.empty()) cpu.arch = {arch, kSource};
    if (const auto model = text_of(element, "modelid"); !model.empty())
      cpu.model = {fmt::format("family {} model {}", text_of(element, "familyid"), model), kSource};
    if (graph_.cpus.size() >= kMaxDevices) return odd(element, "one more <cpu>", fmt::format("{} at most", kMaxDevices));
    const bool again =
        std::any_of(graph_.numa_nodes.begin(), graph_.numa_nodes.end(), [&](const auto& n) { return n.id == numa; });
    if (again) odd(element, fmt::format("numaid={} a second time", numa), "each NUMA node once");
    if (numa >= 0 && !again) graph_.numa_nodes.push_back({numa, cpu.cpus, {}});
    graph_.cpus.push_back(std::move(cpu));
    graph_.pci.push_back({PciNode::Kind::kHostBridge, "", -1, numa, {}});
    read_children(element, static_cast<int>(graph_.pci.size()) - 1);
  }

  void read_children(const XmlElement& element, int node) {
    for (const auto& child : element.children) {
      if (child.name == "pci") {
        read_pci(child, node);
      } else if (child.name == "nic") {
        read_nic(child, node);
      } else if (child.name == "gpu") {
        read_gpu(child, node);
      } else if (child.name != "pcilink") {  // between ports of one switch
        odd(child, "<" + printable(child.name) + ">", "<pci>, <gpu> or <nic>");
      }
    }
  }

  int numa_of(int node) const { return node < 0 ? -1 : graph_.pci[node].numa; }

  void read_pci(const XmlElement& element, int parent) {
    const std::string raw = text_of(element, "busid");
    const auto bus_id = normal_bus_id(raw);
    const int node = static_cast<int>(graph_.pci.size());
    if (node >= kMaxPciNodes) return odd(element, "one more <pci>", fmt::format("{} at most", kMaxPciNodes));
    if (!bus_id) odd(element, "busid=" + in_quotes(raw), "DDDD:BB:DD.F");
    if (bus_id && !nodes_.emplace(*bus_id, node).second)
      odd(element, "busid=" + in_quotes(raw) + " a second time", "each bus id once");
    const auto kind = pci_class(text_of(element, "class"));
    const bool bridge = element.child("pci") || kind == PciClass::kBridge;
    graph_.pci.push_back(
        {bridge ? PciNode::Kind::kBridge : PciNode::Kind::kDevice, bus_id.value_or(""), parent, numa_of(parent), {}});
    elements_[node] = &element;
    read_children(element, node);
    if (graph_.pci[node].device || bridge) return;
    if (kind == PciClass::kGpu) add_gpu(element, node, -1);
    if (kind == PciClass::kNic) add_nic(element, node);
    if (kind == PciClass::kSwitch) add_switch(element, node);
  }

  void add_gpu(const XmlElement& element, int node, int dev) {
    if (graph_.gpus.size() >= kMaxDevices) return odd(element, "one more GPU", fmt::format("{} at most", kMaxDevices));
    const auto& place = graph_.pci[node];
    if (place.device) return odd(element, "a second device at " + in_quotes(place.bus_id), "one");
    Gpu gpu;
    gpu.index = dev;
    if (!place.bus_id.empty()) gpu.bus_id = {place.bus_id, kSource};
    if (place.numa >= 0) gpu.numa = {place.numa, kSource};
    for (const auto& numa : graph_.numa_nodes)
      if (numa.id == place.numa) gpu.cpus = numa.cpus;
    add_width(gpu, node);
    graph_.pci[node].device = topology::gpu(static_cast<int>(graph_.gpus.size()));
    graph_.gpus.push_back(std::move(gpu));
  }

  // The slowest of the GPU's own link and those of the switches above it.
  void add_width(Gpu& gpu, int node) {
    for (int at = node; graph_.pci[at].kind != PciNode::Kind::kHostBridge; at = graph_.pci[at].parent) {
      const auto& element = *elements_.at(at);
      const auto generation = pcie_generation(text_of(element, "link_speed"));
      const auto width = parse_int(text_of(element, "link_width"));
      if (generation) gpu.pcie_generation = {std::min(*generation, gpu.pcie_generation.value.value_or(*generation)), kSource};
      if (width && *width > 0) gpu.pcie_width = {std::min(*width, gpu.pcie_width.value.value_or(*width)), kSource};
    }
  }

  void read_gpu(const XmlElement& element, int node) {
    if (graph_.pci[node].kind == PciNode::Kind::kHostBridge) return odd(element, "<gpu> outside <pci>", "it inside");
    const size_t before = graph_.gpus.size();
    add_gpu(element, node, number_of(element, "dev").value_or(-1));
    if (graph_.gpus.size() == before) return;  // refused
    Gpu& gpu = graph_.gpus.back();
    const auto sm = number_of(element, "sm");
    if (sm && *sm > 0 && !element.attribute("gcn")) gpu.compute_capability = {*sm, kSource};
    if (const auto gcn = printable(text_of(element, "gcn")); !gcn.empty())
      gpu.model = {gcn.starts_with("gfx") ? gcn : "gfx" + gcn, kSource};
    for (const auto& child : element.children) read_link(child, node);
  }

  void read_link(const XmlElement& link, int node) {
    if (link.name == "c2c") return read_c2c(link, node);
    if (link.name != "nvlink" && link.name != "xgmi")
      return odd(link, "<" + printable(link.name) + ">", "<nvlink>, <xgmi> or <c2c>");
    auto target = normal_bus_id(text_of(link, "target"));
    // In a virtual machine NCCL writes fffffff:ffff:ff for "some NVSwitch".
    const bool to_switch = pci_class(text_of(link, "tclass")) == PciClass::kSwitch;
    if (!target && to_switch) target = printable(text_of(link, "target"));
    const auto count = number_of(link, "count");
    if (pending_.size() >= kMaxLinks) return odd(link, "one more link", fmt::format("{} at most", kMaxLinks));
    if (!target) return odd(link, "target=" + in_quotes(text_of(link, "target")), "DDDD:BB:DD.F");
    if (!count || *count == 0) return odd(link, "count=" + in_quotes(text_of(link, "count")), "a number from 1");
    const auto kind = link.name == "xgmi" ? LinkKind::kXgmi : LinkKind::kNvLink;
    pending_.push_back({node, link.line, kind, *target, to_switch, *count});
  }

  void read_c2c(const XmlElement& link, int node) {
    const auto count = number_of(link, "count"), bandwidth = number_of(link, "bw");  // MB/s a link
    if (!count || *count == 0) return odd(link, "count=" + in_quotes(text_of(link, "count")), "a number from 1");
    Link out{*graph_.pci[node].device, cpu(std::max(numa_of(node), 0)), LinkKind::kC2c, *count, {}, {}, kSource};
    if (bandwidth) out.gbytes_per_s = {*bandwidth / 1000.0, kSource};
    c2c_.push_back(out);
  }

  void read_nic(const XmlElement& element, int node) {
    for (const auto& net : element.children) {
      if (net.name != "net") {
        odd(net, "<" + printable(net.name) + ">", "<net>");
        continue;
      }
      Nic* nic = add_nic(net, node);
      if (!nic) return;
      if (const auto name = text_of(net, "name"); !name.empty()) nic->name = {name, kSource};
      if (const auto speed = number_of(net, "speed"); speed && *speed > 0) nic->mbits_per_s = {*speed, kSource};
    }
  }

  Nic* add_nic(const XmlElement& element, int node) {
    const int index = static_cast<int>(graph_.nics.size());
    if (index >= kMaxDevices) return odd(element, "one more NIC", fmt::format("{} at most", kMaxDevices)), nullptr;
    Nic nic;
    nic.index = index;
    if (node >= 0) place_nic(nic, node);
    graph_.nics.push_back(std::move(nic));
    return &graph_.nics.back();
  }

  // The second port of a card gets a node of its own beside the first.
  void place_nic(Nic& nic, int node) {
    const PciNode place = graph_.pci[node];
    if (!place.bus_id.empty()) nic.bus_id = {place.bus_id, kSource};
    if (place.numa >= 0) nic.numa = {place.numa, kSource};
    if (place.kind == PciNode::Kind::kHostBridge) {
      graph_.pci.push_back({PciNode::Kind::kDevice, "", node, place.numa, topology::nic(nic.index)});
    } else if (place.device) {
      graph_.pci.push_back({PciNode::Kind::kDevice, place.bus_id, place.parent, place.numa, topology::nic(nic.index)});
    } else {
      graph_.pci[node].device = topology::nic(nic.index);
    }
  }

  int add_switch(const std::string& bus_id) {
    for (const auto& known : graph_.switches)
      if (known.bus_id.value == bus_id) return known.index;
    const int index = static_cast<int>(graph_.switches.size());
    graph_.switches.push_back({index, {bus_id, kSource}});
    return index;
  }

  void add_switch(const XmlElement& element, int node) {
    if (graph_.switches.size() >= kMaxDevices) return odd(element, "one more NVSwitch", fmt::format("{} at most", kMaxDevices));
    graph_.pci[node].device = nvswitch(add_switch(graph_.pci[node].bus_id));
  }

  // GPUs that the file does not number come in bus order, as nvidia-smi counts them.
  void number_gpus() {
    const bool numbered = std::all_of(graph_.gpus.begin(), graph_.gpus.end(), [](const Gpu& g) { return g.index >= 0; });
    std::vector<int> order(graph_.gpus.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      const auto &left = graph_.gpus[a], &right = graph_.gpus[b];
      return numbered ? left.index < right.index : left.bus_id.value < right.bus_id.value;
    });
    std::vector<int> place(order.size());
    std::vector<Gpu> gpus;
    for (size_t i = 0; i < order.size(); ++i) {
      place[order[i]] = static_cast<int>(i);
      gpus.push_back(graph_.gpus[order[i]]);
      if (numbered && i > 0 && gpus[i].index == gpus[i - 1].index)
        graph_.add_finding(file_, fmt::format("dev={} a second time", gpus[i].index), "each dev once");
    }
    for (size_t i = 0; i < gpus.size(); ++i) gpus[i].index = static_cast<int>(i);
    graph_.gpus = std::move(gpus);
    for (auto& node : graph_.pci)
      if (node.device && node.device->kind == DeviceKind::kGpu) node.device->index = place[node.device->index];
    for (auto& link : c2c_) {
      link.a.index = place[link.a.index];
      graph_.add_link(link);
    }
  }

  std::optional<Device> device_at(const std::string& bus_id) const {
    const auto node = nodes_.find(bus_id);
    return node == nodes_.end() ? std::nullopt : graph_.pci[node->second].device;
  }

  void resolve_links() {
    std::map<std::pair<Device, Device>, int> ends;  // how many of a pair's two GPUs name the other
    for (const auto& link : pending_) resolve(link, ends);
    for (const auto& [pair, count] : ends)
      if (count == 1 && pair.first.kind == DeviceKind::kGpu && pair.second.kind == DeviceKind::kGpu)
        graph_.add_finding(file_, name_of(pair.first) + "-" + name_of(pair.second) + " linked from one side only",
                           "both to name it");
  }

  void resolve(const Pending& link, std::map<std::pair<Device, Device>, int>& ends) {
    const Device from = *graph_.pci[link.node].device;
    const std::string where = fmt::format("{}:{}", file_, link.line);
    auto to = device_at(link.target);
    if (!to && link.to_switch && graph_.switches.size() < kMaxDevices) to = nvswitch(add_switch(link.target));
    if (!to) return graph_.add_finding(where, "a link to " + in_quotes(link.target), "a GPU or NVSwitch of this file");
    if (*to == from) return graph_.add_finding(where, "a link of " + name_of(from) + " to itself", "another device");
    if (to->kind == DeviceKind::kNic) return graph_.add_finding(where, "a link to " + name_of(*to), "a GPU or NVSwitch");
    graph_.add_link({from, *to, link.kind, link.count, {}, {}, kSource});
    ++ends[{std::min(from, *to), std::max(from, *to)}];
  }

  const std::string& file_;
  Graph graph_;
  std::map<int, const XmlElement*> elements_;  // <pci> of a node
  std::map<std::string, int> nodes_;           // by bus id
  std::vector<Pending> pending_;
  std::vector<Link> c2c_;
  size_t mask_length_ = 0;
};

}  // namespace

Graph read_nccl_xml(std::string_view text, const std::string& file) {
  const XmlElement root = parse_xml(text, file);
  if (root.name != "system")
    refuse("{}:{}: found <{}>; wanted <system>, an NCCL topology", file, root.line, printable(root.name));
  Graph graph = NcclReader(file).read(root);
  if (graph.gpus.empty()) graph.add_finding(file, "no GPU", "<pci> of class 0x0302.. or <gpu>");
  check_health(graph);
  return graph;
}

}  // namespace muster::comm::topology
