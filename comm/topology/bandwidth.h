#pragma once

#include <string>
#include <vector>

#include "comm/topology/graph.h"

namespace muster::comm::topology {

// What an all-reduce of large messages over some GPUs of one machine should reach.
struct AllReduceEstimate {
  std::vector<int> gpus;
  double bus_gbytes_per_s = 0;  // as nccl-tests counts it: size * 2(n-1)/n / time; 0 where the graph tells too little
  int channels = 0;             // rings or trees that run side by side
  std::string how;              // "4 rings over NVLink"
};

struct BandwidthTable {
  std::vector<AllReduceEstimate> rows;
  std::string link;  // what one link was taken to carry, and why
  std::string note;  // what the graph did not tell; may be empty
};

// From the links alone. As NCCL does, looks for as many rings through all GPUs as the links allow in each direction, and for
// trees (chains, within one machine) where no ring closes; a ring counts with the rate of one link, a tree with half of it. What
// a link carries after protocol overhead comes from a table by generation. GPUs without a common NVLink network are joined by one
// PCIe ring as fast as its slowest step. The search is bounded: for more than 8 GPUs with odd wirings it may find fewer rings
// than there are. Pure and deterministic; milliseconds.
AllReduceEstimate estimate_all_reduce(const Graph& graph, const std::vector<int>& gpus);

// The same for the first 2, 3, ... GPUs.
BandwidthTable estimate_first_gpus(const Graph& graph);
std::string to_text(const BandwidthTable& table);

// The most rings (directed cycles through every node) that fit into `capacity`, links from row to column; up to the bound of the
// search. Exposed for tests.
int pack_rings(const std::vector<std::vector<int>>& capacity);
// The same for chains: paths through every node that use a link in both directions.
int pack_chains(const std::vector<std::vector<int>>& capacity);

}  // namespace muster::comm::topology
