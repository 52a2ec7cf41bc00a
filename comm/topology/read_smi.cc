// What `nvidia-smi -q -x` and `nvidia-smi -L` say. Neither tells how GPUs are joined.
#include <algorithm>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/readers.h"
#include "comm/topology/words.h"
#include "comm/topology/xml.h"

namespace muster::comm::topology {
namespace {

std::string known(const std::string& value) {
  return value == "N/A" || value == "None" || value.starts_with("[") ? "" : printable(value, kLongName);
}

class SmiXmlReader {
 public:
  explicit SmiXmlReader(const std::string& file) : file_(file) {}

  Graph read(const XmlElement& log) {
    for (const auto& element : log.children)
      if (element.name == "gpu") read_gpu(element);
    const auto attached = parse_int(log.child_text("attached_gpus"));
    if (attached && *attached != static_cast<int>(graph_.gpus.size())) {
      graph_.add_finding(file_, fmt::format("{} <gpu> elements", graph_.gpus.size()),
                         fmt::format("{}, as attached_gpus says", *attached));
    }
    check_health(graph_);
    return std::move(graph_);
  }

 private:
  void odd(const XmlElement& element, std::string found, std::string wanted) {
    graph_.add_finding(fmt::format("{}:{}", file_, element.line), std::move(found), std::move(wanted));
  }

  Fact<std::string> text(const XmlElement& element, const char* key) const {
    const std::string value = known(element.child_text(key));
    return value.empty() ? Fact<std::string>{} : Fact<std::string>{value, Source::kSmiXml};
  }

  Fact<int> number(const XmlElement& element, const char* key) {
    const std::string value = known(element.child_text(key));
    const auto number = leading_int(value);
    if (!value.empty() && !number) odd(element, fmt::format("<{}> {}", key, in_quotes(value)), "a number");
    return number ? Fact<int>{*number, Source::kSmiXml} : Fact<int>{};
  }

  void read_gpu(const XmlElement& element) {
    if (graph_.gpus.size() >= kMaxDevices) return odd(element, "one more GPU", fmt::format("{} at most", kMaxDevices));
    Gpu gpu;
    gpu.index = static_cast<int>(graph_.gpus.size());
    gpu.uuid = text(element, "uuid");
    gpu.model = text(element, "product_name");
    read_bus_id(gpu, element);
    if (const auto* pci = element.child("pci")) read_width(gpu, *pci);
    if (const auto* fabric = element.child("fabric")) {
      gpu.fabric = text(*fabric, "state");
      if (gpu.fabric) gpu.fabric_clique = number(*fabric, "cliqueId");
    }
    if (const auto* platform = element.child("platformInfo")) gpu.module = number(*platform, "module_id");
    read_mig(gpu, element);
    check_uuid(gpu, element);
    graph_.gpus.push_back(std::move(gpu));
  }

  void read_bus_id(Gpu& gpu, const XmlElement& element) {
    const auto* id = element.attribute("id");
    const auto bus_id = id ? normal_bus_id(*id) : std::nullopt;
    if (!bus_id) return odd(element, "<gpu> id=" + in_quotes(id ? *id : ""), "DDDDDDDD:BB:DD.F");
    gpu.bus_id = {*bus_id, Source::kSmiXml};
    const auto* pci = element.child("pci");
    const auto inside = pci ? normal_bus_id(pci->child_text("pci_bus_id")) : std::nullopt;
    if (inside && *inside != *bus_id) odd(element, "pci_bus_id " + *inside, *bus_id + ", as the id says");
  }

  void read_width(Gpu& gpu, const XmlElement& pci) {
    const auto* link = pci.child("pci_gpu_link_info");
    if (!link) return;
    if (const auto* generation = link->child("pcie_gen")) gpu.pcie_generation = number(*generation, "max_link_gen");
    if (const auto* widths = link->child("link_widths")) {
      gpu.pcie_width = number(*widths, "max_link_width");
      gpu.pcie_width_now = number(*widths, "current_link_width");
    }
  }

  void read_mig(Gpu& gpu, const XmlElement& element) {
    const auto* mode = element.child("mig_mode");
    const std::string current = mode ? known(mode->child_text("current_mig")) : "";
    if (!current.empty()) gpu.mig = {current == "Enabled", Source::kSmiXml};
    const auto* devices = element.child("mig_devices");
    for (const auto& slice : devices ? devices->children : std::vector<XmlElement>{})
      if (slice.name == "mig_device") gpu.slices.push_back({"", known(slice.child_text("uuid"))});
  }

  void check_uuid(const Gpu& gpu, const XmlElement& element) {
    for (const auto& other : graph_.gpus)
      if (gpu.uuid && other.uuid == gpu.uuid) return odd(element, "UUID " + *gpu.uuid + " a second time", "each UUID once");
  }

  const std::string& file_;
  Graph graph_;
};

class SmiListReader {
 public:
  explicit SmiListReader(const std::string& file) : file_(file) {}

  Graph read(std::string_view text) {
    for (const auto& line : split_lines(text)) {
      ++line_;
      const std::string words = trimmed(line);
      if (words.starts_with("GPU ")) read_gpu(words);
      if (words.starts_with("MIG ")) read_slice(words);
    }
    return std::move(graph_);
  }

 private:
  void odd(const std::string& found, const std::string& wanted) {
    graph_.add_finding(fmt::format("{}:{}", file_, line_), in_quotes(found), wanted);
  }

  // What stands in "(UUID: ...)" at the end; the text before it in `rest`.
  static std::optional<std::string> uuid_of(const std::string& line, std::string& rest) {
    const size_t start = line.rfind("(UUID: ");
    if (start == std::string::npos || !line.ends_with(")")) return std::nullopt;
    rest = trimmed(std::string_view(line).substr(0, start));
    return printable(std::string_view(line).substr(start + 7, line.size() - start - 8), kLongName);
  }

  void read_gpu(const std::string& line) {
    std::string rest;
    const auto uuid = uuid_of(line, rest);
    const size_t colon = rest.find(": ");
    const auto index = uuid && colon != std::string::npos ? parse_int(std::string_view(rest).substr(4, colon - 4)) : std::nullopt;
    if (!index) return odd(line, "GPU N: NAME (UUID: GPU-...)");
    if (*index >= kMaxDevices || graph_.find_gpu(*index)) return odd(line, fmt::format("a new index below {}", kMaxDevices));
    Gpu gpu;
    gpu.index = *index;
    gpu.model = {printable(std::string_view(rest).substr(colon + 2), kLongName), Source::kSmiList};
    gpu.uuid = {*uuid, Source::kSmiList};
    for (const auto& other : graph_.gpus)
      if (other.uuid == gpu.uuid) odd(line, "each UUID once");
    graph_.gpus.push_back(std::move(gpu));
  }

  // "MIG 1g.5gb Device 0: (UUID: ...)"; old drivers print "MIG 1g.5gb     Device  0: ...".
  void read_slice(const std::string& line) {
    std::string rest;
    const auto uuid = uuid_of(line, rest);
    const auto words = split_words(rest);
    if (!uuid || words.size() < 2) return odd(line, "MIG PROFILE Device N: (UUID: MIG-...)");
    if (graph_.gpus.empty()) return odd(line, "the line of its GPU before it");
    graph_.gpus.back().mig = {true, Source::kSmiList};
    graph_.gpus.back().slices.push_back({printable(words[1]), *uuid});
  }

  const std::string& file_;
  Graph graph_;
  int line_ = 0;
};

}  // namespace

Graph read_smi_xml(std::string_view text, const std::string& file) {
  const XmlElement root = parse_xml(text, file);
  if (root.name != "nvidia_smi_log")
    refuse("{}:{}: found <{}>; wanted <nvidia_smi_log>, the output of nvidia-smi -q -x", file, root.line, printable(root.name));
  return SmiXmlReader(file).read(root);
}

Graph read_smi_list(std::string_view text, const std::string& file) {
  Graph graph = SmiListReader(file).read(text);
  if (graph.gpus.empty() && graph.findings.empty())
    refuse("{}: found no line GPU N: NAME (UUID: ...); wanted the output of nvidia-smi -L", file);
  return graph;
}

}  // namespace muster::comm::topology
