// GPUs on a ring with the links between them, NICs outside beside the GPU that is nearest.
#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "comm/topology/graph.h"

namespace muster::comm::topology {
namespace {

struct Point {
  double x, y;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

class Drawing {
 public:
  explicit Drawing(const Graph& graph) : graph_(graph) {
    const double count = std::max<double>(1, static_cast<double>(graph.gpus.size()));
    radius_ = std::max(120.0, count * 22);
    std::map<size_t, int> crowd;
    int most = 3;
    for (const auto& n : graph.nics) most = std::max(most, ++crowd[nearest(n).first]);
    size_ = 2 * (radius_ + 80 + 42 * most);
  }

  std::string draw() {
    for (size_t i = 0; i < graph_.gpus.size(); ++i)
      for (size_t j = i + 1; j < graph_.gpus.size(); ++j) connect(i, j);
    for (size_t i = 0; i < graph_.gpus.size(); ++i) draw_gpu(i);
    for (const auto& n : graph_.nics) draw_nic(n);
    draw_numa_nodes();
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{0:.0f}\" font-family=\"sans-serif\" "
        "font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{1}</svg>\n",
        size_, out_);
  }

 private:
  Point at(size_t i, double radius) const {
    const double angle =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(graph_.gpus.size()) - std::numbers::pi / 2;
    return {size_ / 2 + radius * std::cos(angle), size_ / 2 + radius * std::sin(angle)};
  }

  void connect(size_t i, size_t j) {
    const int links = graph_.joined_by(graph_.gpus[i].index, graph_.gpus[j].index);
    if (links == 0) return;
    const Point a = at(i, radius_), b = at(j, radius_);
    out_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#5a9\" "
        "stroke-width=\"{:.1f}\"><title>{}</title></line>\n",
        a.x, a.y, b.x, b.y, 0.6 + std::min(links, 18) * 0.4,
        escaped(graph_.cell(gpu(graph_.gpus[i].index), gpu(graph_.gpus[j].index))));
  }

  void box(Point p, const char* fill, const std::string& first, const std::string& second) {
    out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"84\" height=\"34\" rx=\"5\" fill=\"{}\" stroke=\"#333\"/>\n",
                        p.x - 42, p.y - 17, fill);
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", p.x, p.y - 2, escaped(first));
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\">{}</text>\n", p.x, p.y + 11, escaped(second));
  }

  void draw_gpu(size_t i) {
    static constexpr const char* kFills[] = {"#cde8ff", "#ffe3c2", "#d9f2d0", "#f3d6f5",
                                             "#fff3b0", "#d5d8f7", "#ffd6d6", "#d0f0ee"};
    const Gpu& g = graph_.gpus[i];
    const int numa = g.numa.value.value_or(-1);
    box(at(i, radius_), numa < 0 ? "#eee" : kFills[numa % 8], name_of(gpu(g.index)),
        numa < 0 ? "NUMA ?" : fmt::format("NUMA {}", numa));
  }

  // The GPU and its distance: a PathClass, 98 where nobody told.
  std::pair<size_t, int> nearest(const Nic& n) const {
    size_t best = 0;
    int distance = 99;
    for (size_t i = 0; i < graph_.gpus.size(); ++i) {
      const auto path = graph_.paths.find({gpu(graph_.gpus[i].index), nic(n.index)});
      const int d = path == graph_.paths.end() ? 98 : static_cast<int>(*path->second);
      if (d < distance) best = i, distance = d;
    }
    return {best, distance};
  }

  // Outside the GPU that it is nearest to; NICs of one GPU stand one behind the other.
  void draw_nic(const Nic& n) {
    const auto [best, distance] = nearest(n);
    const std::string path = distance < 98 ? std::string(", ") + name_of(static_cast<PathClass>(distance)) : "";
    const Point p = graph_.gpus.empty() ? Point{size_ / 2, 30 + 40.0 * n.index} : at(best, radius_ + 65 + 42.0 * beside_[best]++);
    box(p, "#f7f7f7", n.name ? *n.name : name_of(nic(n.index)), name_of(nic(n.index)) + path);
  }

  void draw_numa_nodes() {
    double y = size_ - 12;
    for (auto node = graph_.numa_nodes.rbegin(); node != graph_.numa_nodes.rend(); ++node, y -= 15)
      out_ += fmt::format("<text x=\"10\" y=\"{:.0f}\" text-anchor=\"start\">NUMA {}: CPUs {}</text>\n", y, node->id,
                          escaped(node->cpus.value.value_or("?")));
  }

  const Graph& graph_;
  double radius_, size_;
  std::string out_;
  std::map<size_t, int> beside_;
};

}  // namespace

std::string to_svg(const Graph& graph) { return Drawing(graph).draw(); }

}  // namespace muster::comm::topology
