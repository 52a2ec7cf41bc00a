#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "comm/base/error.h"
#include "comm/topology/matrix_text.h"
#include "comm/topology/readers.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

constexpr Source kSource = Source::kTopoMatrix;

// "NV12" is 12.
std::optional<int> nvlinks(const std::string& cell) {
  return cell.starts_with("NV") ? parse_int(std::string_view(cell).substr(2)) : std::nullopt;
}

class MatrixReader {
 public:
  MatrixReader(const std::string& file, const MatrixText& text) : text_(text), file_(file) {}

  Graph read() {
    for (const auto& column : text_.columns) add_device(column);
    for (const auto& row : text_.rows) read_row(row);
    report_missing_rows();
    for (const auto& [label, name] : text_.legend) name_nic(label, name);
    replace_switches();
    collect_numa_nodes();
    check_health(graph_);
    return std::move(graph_);
  }

 private:
  void odd(int line, std::string found, std::string wanted) {
    graph_.add_finding(fmt::format("{}:{}", file_, line), std::move(found), std::move(wanted));
  }

  void add_device(const std::string& column) {
    const int number = column.starts_with("GPU") ? parse_int(std::string_view(column).substr(3)).value_or(-1) : -1;
    if (devices_.contains(column))
      return odd(text_.header_line, "column " + in_quotes(column) + " a second time", "each device once");
    if (number >= 0 && number < kMaxDevices) {
      Gpu gpu;
      gpu.index = number;
      graph_.gpus.push_back(gpu);
      devices_[column] = topology::gpu(number);
    } else {
      Nic nic;
      nic.index = static_cast<int>(graph_.nics.size());
      if (!column.starts_with("NIC")) nic.name = {column, kSource};
      devices_[column] = topology::nic(nic.index);
      graph_.nics.push_back(std::move(nic));
    }
  }

  void read_row(const MatrixRow& row) {
    const auto device = devices_.find(row.label);
    if (device == devices_.end()) return odd(row.line, "row " + in_quotes(row.label), "a device of the header");
    if (!seen_.insert(row.label).second)
      return odd(row.line, "row " + in_quotes(row.label) + " a second time", "each device once");
    if (row.cells.size() != text_.columns.size()) {
      return odd(row.line, fmt::format("{} cells in row {}", row.cells.size(), row.label),
                 fmt::format("{}, one a device of the header", text_.columns.size()));
    }
    for (size_t i = 0; i < row.cells.size(); ++i) read_cell(row, device->second, devices_.at(text_.columns[i]), row.cells[i]);
    read_rest(row, device->second);
  }

  void read_cell(const MatrixRow& row, Device a, Device b, const std::string& cell) {
    if ((cell == "X") != (a == b))
      return odd(row.line, in_quotes(cell) + " at " + name_of(a) + "-" + name_of(b), "X on the diagonal alone");
    if (a == b) return;
    const auto path = path_class(cell);
    const auto links = nvlinks(cell);
    const std::string previous = remember(a, b, cell);
    if (previous != cell) {
      return odd(row.line, cell + " at " + name_of(a) + "-" + name_of(b), previous + ", as the row of the other device says");
    }
    if (path) return graph_.add_path(a, b, *path, kSource, fmt::format("{}:{}", file_, row.line));
    const bool gpus = a.kind == DeviceKind::kGpu && b.kind == DeviceKind::kGpu;
    if (!links || *links < 1 || *links > kMaxNvLinks || !gpus)
      return odd(row.line, in_quotes(cell) + " at " + name_of(a) + "-" + name_of(b),
                 "NV# between GPUs, PIX, PXB, PHB, NODE or SYS");
    if (a < b || !graph_.find_link(a, b)) graph_.add_link({a, b, LinkKind::kNvLink, *links, {}, {}, kSource});
  }

  // The first report of the pair.
  std::string remember(Device a, Device b, const std::string& cell) {
    return cells_.emplace(std::pair(std::min(a, b), std::max(a, b)), cell).first->second;
  }

  void read_rest(const MatrixRow& row, Device device) {
    if (device.kind != DeviceKind::kGpu) return;
    auto& gpu = *std::find_if(graph_.gpus.begin(), graph_.gpus.end(), [&](const Gpu& g) { return g.index == device.index; });
    const auto fact = [&](MatrixText::Extra extra) {
      const auto at = row.extras.find(extra);
      return at == row.extras.end() || at->second == "N/A" ? std::string() : at->second;
    };
    if (const auto cpus = fact(MatrixText::kCpuAffinity); !cpus.empty()) {
      const auto list = parse_cpu_list(cpus);
      if (!list) odd(row.line, "CPU affinity " + in_quotes(cpus), "a list such as 0-15,32-47");
      if (list) gpu.cpus = {to_cpu_list(*list), kSource};
    }
    if (const auto numa = fact(MatrixText::kNumaAffinity); !numa.empty()) {
      const auto id = parse_int(numa);
      if (!id) odd(row.line, "NUMA affinity " + in_quotes(numa), "one node's number");
      if (id) gpu.numa = {*id, kSource};
    }
  }

  void report_missing_rows() {
    std::string missing;
    size_t count = 0;
    for (const auto& column : text_.columns)
      if (!seen_.contains(column) && ++count <= 4) missing += (missing.empty() ? "" : " ") + column;
    if (count > 0)
      odd(text_.header_line, fmt::format("no row for {}{}", missing, count > 4 ? " ..." : ""),
          "a row for each column; is the output cut off?");
  }

  void name_nic(const std::string& label, const std::string& name) {
    const auto device = devices_.find(label);
    if (device != devices_.end() && device->second.kind == DeviceKind::kNic)
      graph_.nics[device->second.index].name = {name, kSource};
  }

  // The matrix counts a pair. More links than a GPU has can only be the same links seen by each peer: they end in NVSwitches.
  void replace_switches() {
    std::map<Device, int> sums;
    for (const auto& link : graph_.links) {
      sums[link.a] += link.count;
      sums[link.b] += link.count;
    }
    const bool switched = std::any_of(sums.begin(), sums.end(), [](const auto& sum) { return sum.second > kMaxNvLinks; });
    if (!switched) return;
    std::map<Device, int> links;
    for (const auto& link : graph_.links)
      for (const Device end : {link.a, link.b}) links[end] = std::max(links[end], link.count);
    graph_.links.clear();
    graph_.switches.push_back({});  // how many there are, the matrix does not say: one stands for all
    for (const auto& [gpu, count] : links) graph_.add_link({gpu, nvswitch(0), LinkKind::kNvLink, count, {}, {}, kSource});
    check_switched_pairs();
  }

  void check_switched_pairs() {
    for (const auto& [pair, cell] : cells_) {
      const auto [a, b] = pair;
      if (a.kind != DeviceKind::kGpu || b.kind != DeviceKind::kGpu || graph_.cell(a, b) == cell) continue;
      graph_.add_finding(file_, fmt::format("{} between {} and {}", cell, name_of(a), name_of(b)),
                         graph_.cell(a, b) + ", since both hang on NVSwitches");
    }
  }

  // CPUs of a node: those of its GPUs.
  void collect_numa_nodes() {
    std::map<int, Fact<std::string>> nodes;
    for (const auto& gpu : graph_.gpus)
      if (gpu.numa && !nodes[*gpu.numa]) nodes[*gpu.numa] = gpu.cpus;
    for (const auto& [id, cpus] : nodes) graph_.numa_nodes.push_back({id, cpus, {}});
    std::sort(graph_.gpus.begin(), graph_.gpus.end(), [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
  }

  const MatrixText& text_;
  const std::string& file_;
  Graph graph_;
  std::map<std::string, Device> devices_;  // by label
  std::map<std::pair<Device, Device>, std::string> cells_;
  std::set<std::string> seen_;
};

}  // namespace

Graph read_topo_matrix(std::string_view text, const std::string& file) {
  const MatrixText matrix = split_matrix(text, file);
  Graph graph = MatrixReader(file, matrix).read();
  graph.findings.insert(graph.findings.begin(), matrix.findings.begin(), matrix.findings.end());
  return graph;
}

Graph read_p2p_matrix(std::string_view text, const std::string& file) {
  const MatrixText matrix = split_matrix(text, file);
  Graph graph;
  graph.findings = matrix.findings;
  std::vector<int> columns;
  for (const auto& column : matrix.columns) {
    const auto index = column.starts_with("GPU") ? parse_int(std::string_view(column).substr(3)) : std::nullopt;
    if (!index) refuse("{}:{}: found column {}; wanted GPUs alone in a P2P matrix", file, matrix.header_line, in_quotes(column));
    Gpu gpu;
    gpu.index = *index;
    columns.push_back(*index);
    graph.gpus.push_back(gpu);
  }
  for (const auto& row : matrix.rows) {
    const auto at = std::find(matrix.columns.begin(), matrix.columns.end(), row.label);
    const std::string where = fmt::format("{}:{}", file, row.line);
    if (at == matrix.columns.end() || row.cells.size() != columns.size()) {
      graph.add_finding(where, fmt::format("row {} of {} cells", in_quotes(row.label), row.cells.size()),
                        fmt::format("a GPU of the header and {} cells", columns.size()));
      continue;
    }
    const int from = columns[at - matrix.columns.begin()];
    for (size_t i = 0; i < columns.size(); ++i)
      if (row.cells[i] != "X") graph.p2p[{from, columns[i]}] = {row.cells[i], Source::kP2pMatrix};
  }
  for (const auto& [pair, status] : graph.p2p) {
    const auto back = graph.p2p.find({pair.second, pair.first});
    if (pair.first < pair.second && back != graph.p2p.end() && back->second != status)
      graph.add_finding(file,
                        fmt::format("P2P {} from GPU{} to GPU{} and {} back", *status, pair.first, pair.second, *back->second),
                        "the same both ways");
  }
  return graph;
}

}  // namespace muster::comm::topology
