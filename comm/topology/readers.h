#pragma once

#include <string>
#include <string_view>

#include "comm/topology/graph.h"

namespace muster::comm::topology {

// Readers of saved machines: text in, graph out. `file` is what messages call the text. What is merely odd becomes a finding in
// the graph with FILE:LINE; InputError (one line) only where the text is not of that kind at all, or no XML. Pure; nothing
// blocks.
Graph read_nccl_xml(std::string_view text, const std::string& file);     // NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE; RCCL's too
Graph read_nccl_graph(std::string_view text, const std::string& file);   // NCCL_GRAPH_DUMP_FILE: rings and trees, no machine
Graph read_topo_matrix(std::string_view text, const std::string& file);  // nvidia-smi topo -m
Graph read_p2p_matrix(std::string_view text, const std::string& file);   // nvidia-smi topo -p2p {r,w,n,a,p}
Graph read_smi_xml(std::string_view text, const std::string& file);      // nvidia-smi -q -x
Graph read_smi_list(std::string_view text, const std::string& file);     // nvidia-smi -L
Graph read_hwloc_xml(std::string_view text, const std::string& file);    // lstopo --of xml

// Any of them, recognised by content.
Graph read_any(std::string_view text, const std::string& file);
// The same from disk; InputError where it cannot be read or is larger than 16 MiB.
Graph read_file(const std::string& path);

}  // namespace muster::comm::topology
