#include "launcher/topo.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "comm/base/error.h"
#include "comm/topology/bandwidth.h"
#include "comm/topology/live.h"
#include "comm/topology/readers.h"
#include "launcher/arguments.h"

namespace muster::launcher {
namespace {

namespace topology = comm::topology;

constexpr const char* kHelp = R"(muster topo shows GPUs, NICs and NUMA nodes of a machine, and what joins them.

  muster topo [--from FILE]... [--tree | --facts | --json | --bandwidth] [--svg FILE]

  --from FILE   a saved machine instead of this one: the output of nvidia-smi topo -m, topo -p2p, -L or -q -x, an NCCL or RCCL
                topology file, or hwloc's XML, recognised by its content. Several of one machine are put together.
  --tree        NUMA nodes and below them the PCIe tree
  --facts       every fact with the source that told it
  --json        the same for programs
  --bandwidth   what an all-reduce over the first 2, 3, ... GPUs should reach, from the links alone
  --svg FILE    a drawing

Without an option it prints the matrix of nvidia-smi topo -m. What is not as it should be is written to stderr.
)";

struct TopoOptions {
  std::vector<std::string> from;
  std::string svg;
  std::string view = "--matrix";
  bool help = false;
};

TopoOptions parse(const std::vector<std::string>& words) {
  static const std::vector<std::string> kViews = {"--tree", "--facts", "--json", "--bandwidth"};
  TopoOptions out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    const bool inline_value = name.size() < words[i].size();
    if (name == "--from" || name == "--svg") {
      if (!inline_value && i + 1 >= words.size()) refuse("{}: found no value; wanted a file", name);
      const std::string value = inline_value ? words[i].substr(name.size() + 1) : words[++i];
      if (value.empty()) refuse("{}: found an empty value; wanted a file", name);
      name == "--from" ? out.from.push_back(value) : void(out.svg = value);
    } else if (words[i] == "--help" || words[i] == "-h") {
      out.help = true;
    } else if (std::find(kViews.begin(), kViews.end(), words[i]) != kViews.end()) {
      if (out.view != "--matrix" && out.view != words[i]) refuse("{}: found {} as well; wanted one of them", words[i], out.view);
      out.view = words[i];
    } else {
      const std::string hint = nearest(words[i], {"--from", "--tree", "--facts", "--json", "--bandwidth", "--svg", "--help"});
      refuse("muster topo: unknown '{}'{}", words[i], hint.empty() ? "; see muster topo --help" : "; did you mean " + hint + "?");
    }
  }
  return out;
}

topology::Graph read(const TopoOptions& options) {
  if (options.from.empty()) return topology::this_machine();
  topology::Graph graph = topology::read_file(options.from[0]);
  for (size_t i = 1; i < options.from.size(); ++i) topology::merge(graph, topology::read_file(options.from[i]));
  return graph;
}

std::string shown(const topology::Graph& graph, const std::string& view) {
  if (view == "--tree") return topology::to_tree(graph);
  if (view == "--facts") return topology::to_text(graph);
  if (view == "--json") return topology::to_json(graph);
  if (view == "--bandwidth") return topology::to_text(topology::estimate_first_gpus(graph));
  return graph.gpus.empty() ? topology::to_tree(graph) : topology::to_matrix(graph);  // no GPU: CPUs, NUMA nodes, NICs
}

void write_svg(const topology::Graph& graph, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out << topology::to_svg(graph);
  out.close();
  if (!out) refuse("--svg: cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace

int topo(const std::vector<std::string>& words) {
  const TopoOptions options = parse(words);
  if (options.help) {
    std::fputs(kHelp, stdout);
    return kExitOk;
  }
  const topology::Graph graph = read(options);
  if (!options.svg.empty()) write_svg(graph, options.svg);
  std::fputs(shown(graph, options.view).c_str(), stdout);
  if (options.view == "--facts" || options.view == "--json") return kExitOk;  // these hold the findings themselves
  for (const auto& finding : graph.findings) std::fprintf(stderr, "muster: %s\n", finding.text().c_str());
  return kExitOk;
}

}  // namespace muster::launcher
