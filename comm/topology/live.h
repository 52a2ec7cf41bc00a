#pragma once

#include <string>

#include "comm/topology/graph.h"

namespace muster::comm::topology {

// PCIe tree, NUMA nodes, CPUs, NICs and NVIDIA GPUs as Linux shows them below `root`/sys, to any user. What is missing is left
// out; what cannot be understood is a finding. `root` is "/" or a folder with a saved tree. Reads small files; no driver is
// woken.
Graph read_sysfs(const std::string& root = "/");

// GPUs, NVLinks, P2P states and MIG as the driver's library tells them; an empty graph where it is not there or does not start.
// Not thread-safe with other users of the library's init and shutdown in one process; creates no CUDA context.
Graph read_nvml(const std::string& library = "libnvidia-ml.so.1");

// Both put together: GPUs in NVML's order, sysfs filling in, disagreements as findings.
Graph this_machine(const std::string& root = "/", const std::string& nvml_library = "libnvidia-ml.so.1");

}  // namespace muster::comm::topology
