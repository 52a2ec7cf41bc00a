#include <fstream>
#include <set>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/matrix_text.h"
#include "comm/topology/readers.h"
#include "comm/topology/words.h"
#include "comm/topology/xml.h"

namespace muster::comm::topology {
namespace {

constexpr std::streamsize kMaxBytes = 16 << 20;

struct XmlKind {
  const char* root;
  Graph (*read)(std::string_view, const std::string&);
};
constexpr XmlKind kXmlKinds[] = {
    {"system", read_nccl_xml}, {"graphs", read_nccl_graph}, {"nvidia_smi_log", read_smi_xml}, {"topology", read_hwloc_xml}};

Graph read_xml(std::string_view text, const std::string& file) {
  const XmlElement root = parse_xml(text, file);
  for (const auto& kind : kXmlKinds)
    if (root.name == kind.root) return kind.read(text, file);
  refuse("{}:{}: found <{}>; wanted <system> (NCCL), <graphs> (NCCL), <nvidia_smi_log> (nvidia-smi -q -x) or <topology> (hwloc)",
         file, root.line, printable(root.name));
}

bool is_list(std::string_view text) {
  for (const auto& line : split_lines(text))
    if (line.starts_with("GPU ") && line.find("(UUID: ") != std::string::npos) return true;
  return false;
}

class ChannelReader {
 public:
  explicit ChannelReader(const std::string& file) : file_(file) {}

  Graph read(const XmlElement& graphs) {
    for (const auto& graph : graphs.children) {
      for (const auto& channel : graph.children) read_channel(graph, channel);
    }
    for (const int index : seen_) {
      Gpu gpu;
      gpu.index = index;
      graph_.gpus.push_back(gpu);
    }
    return std::move(graph_);
  }

 private:
  static std::string text_of(const XmlElement& element, const char* key) {
    const auto* value = element.attribute(key);
    return value ? trimmed(*value) : "";
  }

  // NCCL's numbers of its search patterns.
  static std::string pattern_of(const XmlElement& graph) {
    static constexpr const char* kNames[] = {"?", "balanced tree", "split tree", "tree", "ring", "NVLS", "CollNet direct"};
    const auto number = parse_int(text_of(graph, "pattern"));
    return number && *number >= 1 && *number <= 6 ? kNames[*number] : "pattern " + in_quotes(text_of(graph, "pattern"));
  }

  static double speed_of(const XmlElement& graph) {
    const auto speed = text_of(graph, "speedintra");
    const auto whole = leading_int(speed).value_or(0);
    const size_t dot = speed.find('.');
    const auto tenths = dot == std::string::npos ? 0 : leading_int(std::string_view(speed).substr(dot + 1, 1)).value_or(0);
    return whole + tenths / 10.0;
  }

  void read_channel(const XmlElement& graph, const XmlElement& channel) {
    Channel out{pattern_of(graph), {}, speed_of(graph)};
    for (const auto& member : channel.children) {
      if (member.name == "net") continue;
      const auto dev = parse_int(text_of(member, "dev"));
      if (member.name != "gpu" || !dev || *dev >= kMaxDevices) {
        graph_.add_finding(fmt::format("{}:{}", file_, member.line),
                           "<" + printable(member.name) + "> dev=" + in_quotes(text_of(member, "dev")), "<gpu dev=\"N\"/>");
        continue;
      }
      out.gpus.push_back(*dev);
      seen_.insert(*dev);
    }
    graph_.channels.push_back(std::move(out));
  }

  const std::string& file_;
  Graph graph_;
  std::set<int> seen_;
};

}  // namespace

Graph read_nccl_graph(std::string_view text, const std::string& file) {
  const XmlElement root = parse_xml(text, file);
  if (root.name != "graphs") refuse("{}:{}: found <{}>; wanted <graphs>, an NCCL graph", file, root.line, printable(root.name));
  return ChannelReader(file).read(root);
}

Graph read_any(std::string_view text, const std::string& file) {
  const size_t start = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (start != std::string_view::npos && text[start] == '<') return read_xml(text, file);
  if (is_list(text)) return read_smi_list(text, file);
  if (has_matrix_header(text)) return has_p2p_cells(text) ? read_p2p_matrix(text, file) : read_topo_matrix(text, file);
  refuse("{}: found none of the kinds known; wanted nvidia-smi topo -m, topo -p2p, -L or -q -x, an NCCL topology, or hwloc's XML",
         file);
}

Graph read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("{}: found no file that can be read; wanted a saved machine", path);
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), kMaxBytes + 1);
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxBytes) refuse("{}: found more than {} bytes; wanted a saved machine", path, kMaxBytes);
  if (text.empty()) refuse("{}: found an empty file or a folder; wanted a saved machine", path);
  return read_any(text, path);
}

}  // namespace muster::comm::topology
