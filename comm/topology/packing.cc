// How many rings or chains fit over a set of links. NCCL's search does the same with bandwidths; here a link is the unit.
#include <algorithm>
#include <numeric>

#include "comm/topology/bandwidth.h"

namespace muster::comm::topology {
namespace {

constexpr long kMostSteps = 200000;  // a target; some 5 ms

using Capacity = std::vector<std::vector<int>>;

class Packing {
 public:
  Packing(const Capacity& capacity, bool ring) : left_(capacity), ring_(ring), nodes_(static_cast<int>(capacity.size())) {}

  // Whether `target` of them fit; false too where the search gave up.
  bool fits(int target) {
    steps_ = 0;
    return place(target, 0);
  }

 private:
  bool place(int wanted, int first) {
    if (wanted == 0) return true;
    path_.clear();
    visited_.assign(nodes_, false);
    // A ring may start anywhere; a chain must be tried from each end.
    for (int start = ring_ ? 0 : first; start < (ring_ ? 1 : nodes_); ++start) {
      path_ = {start};
      visited_[start] = true;
      if (extend(wanted, ring_ ? first : start)) return true;
      visited_[start] = false;
    }
    return false;
  }

  void take(int a, int b, int links) {
    left_[a][b] -= links;
    if (!ring_) left_[b][a] -= links;
  }

  // Peers with most links left first: that keeps the load even, and NCCL does so too.
  std::vector<int> next_nodes(int from) const {
    std::vector<int> out;
    for (int to = 0; to < nodes_; ++to)
      if (!visited_[to] && left_[from][to] > 0) out.push_back(to);
    std::stable_sort(out.begin(), out.end(), [&](int a, int b) { return left_[from][a] > left_[from][b]; });
    return out;
  }

  bool close(int wanted, int first) {
    const int last = path_.back(), start = path_.front();
    if (ring_ && left_[last][start] < 1) return false;
    if (ring_) take(last, start, 1);
    const auto path = path_;
    const auto visited = visited_;
    if (place(wanted - 1, first)) return true;
    path_ = path;
    visited_ = visited;
    if (ring_) take(last, start, -1);
    return false;
  }

  bool extend(int wanted, int first) {
    if (++steps_ > kMostSteps) return false;
    if (static_cast<int>(path_.size()) == nodes_) return close(wanted, ring_ ? path_[1] : first);
    const int from = path_.back();
    for (const int to : next_nodes(from)) {
      if (ring_ && path_.size() == 1 && to < first) continue;  // rings in order of their first step: each set once
      take(from, to, 1);
      path_.push_back(to);
      visited_[to] = true;
      if (extend(wanted, first)) return true;
      path_.pop_back();
      visited_[to] = false;
      take(from, to, -1);
    }
    return false;
  }

  Capacity left_;
  const bool ring_;
  const int nodes_;
  long steps_ = 0;
  std::vector<int> path_;
  std::vector<bool> visited_;
};

int most(const Capacity& capacity, int bound, bool ring) {
  for (int target = bound; target > 0; --target)
    if (Packing(capacity, ring).fits(target)) return target;
  return 0;
}

}  // namespace

int pack_rings(const Capacity& capacity) {
  const int nodes = static_cast<int>(capacity.size());
  if (nodes < 2) return 0;
  int bound = 1 << 20;
  for (int i = 0; i < nodes; ++i) {
    int in = 0;
    for (int j = 0; j < nodes; ++j) in += capacity[j][i];
    bound = std::min({bound, in, std::accumulate(capacity[i].begin(), capacity[i].end(), 0)});
  }
  return nodes == 2 ? bound : most(capacity, bound, true);
}

int pack_chains(const Capacity& capacity) {
  const int nodes = static_cast<int>(capacity.size());
  if (nodes < 2) return 0;
  int links = 0, bound = 1 << 20;
  for (const auto& row : capacity) {
    const int degree = std::accumulate(row.begin(), row.end(), 0);
    links += degree;
    bound = std::min(bound, degree);  // a chain takes one link of each node at least
  }
  return most(capacity, std::min(bound, links / 2 / (nodes - 1)), false);
}

}  // namespace muster::comm::topology
