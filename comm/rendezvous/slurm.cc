#include "comm/rendezvous/slurm.h"

#include <numeric>

#include "comm/base/error.h"
#include "comm/rendezvous/environment.h"

namespace muster::comm {
namespace {

constexpr int kMostNodes = 1 << 16;

// One element: "8" or "8(x3)".
void append_tasks(const std::string& where, const std::string& element, std::vector<int>& tasks) {
  const size_t open = element.find("(x");
  const int count = static_cast<int>(parse_number(where, element.substr(0, open), 1, kMostNodes));
  int repeat = 1;
  if (open != std::string::npos) {
    if (element.back() != ')') refuse("{}: found '{}', wanted a form such as 8(x3)", where, element);
    repeat = static_cast<int>(parse_number(where, element.substr(open + 2, element.size() - open - 3), 1, kMostNodes));
  }
  if (tasks.size() + repeat > kMostNodes) refuse("{}: more than {} nodes", where, kMostNodes);
  tasks.insert(tasks.end(), repeat, count);
}

}  // namespace

std::vector<int> parse_tasks_per_node(const std::string& where, const std::string& text, int ranks) {
  std::vector<int> tasks;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    append_tasks(where, text.substr(from, comma - from), tasks);
    from = comma + 1;
  }
  const long long sum = std::accumulate(tasks.begin(), tasks.end(), 0LL);
  if (sum != ranks) refuse("{}: found '{}', a sum of {}, wanted the number of ranks ({})", where, text, sum, ranks);
  return tasks;
}

std::string first_node(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, node_list.find_first_of(",-]", bracket) - bracket - 1);
}

std::string slurm_master(const std::string& wanted, const std::string& node_list, const std::string& launch_address,
                         int node_count) {
  if (!wanted.empty()) return wanted;
  if (node_count == 1 && !launch_address.empty()) return launch_address;
  if (!node_list.empty()) return first_node(node_list);
  if (!launch_address.empty()) return launch_address;
  refuse("SLURM_STEP_NODELIST: not set, and neither is SLURM_LAUNCH_NODE_IPADDR; set MUSTER_MASTER_ADDR to rank 0's host");
}

int slurm_port(long long job_id) { return 20000 + static_cast<int>(job_id % 10000); }

}  // namespace muster::comm
