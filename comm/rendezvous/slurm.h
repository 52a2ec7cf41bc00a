#pragma once
// Slurm's notations. Pure functions.

#include <string>
#include <vector>

namespace muster::comm {

// "8(x3),4" → {8, 8, 8, 4}. InputError naming `where` unless it is well formed and sums to `ranks`.
std::vector<int> parse_tasks_per_node(const std::string& where, const std::string& text, int ranks);

// "gpu[07-10,12],login" → "gpu07". Empty for an empty list.
std::string first_node(const std::string& node_list);

// Rank 0 runs on the first node of the step; SLURM_LAUNCH_NODE_IPADDR is that node only where the job has one node.
std::string slurm_master(const std::string& wanted, const std::string& node_list, const std::string& launch_address,
                         int node_count);

// A port that two jobs of one machine seldom share.
int slurm_port(long long job_id);

}  // namespace muster::comm
