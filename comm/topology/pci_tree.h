#pragma once

#include <optional>
#include <string>

#include "comm/topology/graph.h"

namespace muster::comm::topology {

enum class PciClass { kOther, kGpu, kNic, kSwitch, kBridge };
PciClass pci_class(const std::string& code);  // "0x030200": base class and sub class decide

// "16 GT/s", "32.0 GT/s PCIe", "8GT/s".
std::optional<int> pcie_generation(const std::string& speed);

// How a source draws a PCIe switch: Linux shows its upstream port and every downstream port as bridges of their own, NCCL's files
// show one node a switch.
enum class SwitchShape { kPortByPort, kWhole };

// The class of two nodes of graph.pci, by what their way up has in common: one switch PIX, several PXB, the host bridge PHB, the
// NUMA node NODE, else SYS. Host bridges without a bus id are not told apart, as in NCCL's files: there one NUMA node is PHB,
// never NODE.
PathClass path_between(const Graph& graph, int a, int b, SwitchShape shape);

// Adds the path of every two devices that have a place in the tree. `source` is where the tree came from.
void add_tree_paths(Graph& graph, SwitchShape shape, Source source);

}  // namespace muster::comm::topology
