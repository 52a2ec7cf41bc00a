#include "launcher/launch_plan.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

struct Node {
  std::string host;
  int ranks;
};

bool is_here(const Host& host, const Machine& m) {
  return host.name == "localhost" || host.name == "127.0.0.1" || host.name == m.host;
}

int slurm_nodes(const Machine& m) {
  const auto nodes = m.environment.find("SLURM_JOB_NUM_NODES");
  const bool inside = m.environment.contains("SLURM_JOB_ID") && nodes != m.environment.end();
  return inside ? static_cast<int>(comm::parse_number("SLURM_JOB_NUM_NODES", nodes->second, 1, 1 << 16)) : 1;
}

// Slots decide; without them the ranks are dealt out evenly.
std::vector<Node> nodes_from_hosts(const LaunchOptions& o) {
  std::vector<Host> hosts = o.hosts;
  if (o.nodes > static_cast<int>(hosts.size())) refuse("--nnodes: found {}, but {} hosts are given", o.nodes, hosts.size());
  if (o.nodes > 0) hosts.resize(o.nodes);
  std::vector<Node> nodes;
  const int count = static_cast<int>(hosts.size());
  for (int i = 0; i < count; ++i) {
    const int even = o.ranks > 0 ? o.ranks / count + (i < o.ranks % count) : 1;
    nodes.push_back({hosts[i].name, o.ranks_per_node > 0 ? o.ranks_per_node : hosts[i].slots > 0 ? hosts[i].slots : even});
  }
  return nodes;
}

// -n below the sum of the slots: the first hosts are filled, as mpirun does.
void cut_to(std::vector<Node>& nodes, int ranks) {
  for (Node& node : nodes) {
    node.ranks = std::min(node.ranks, ranks);
    ranks -= node.ranks;
  }
  nodes.back().ranks += ranks;
  std::erase_if(nodes, [](const Node& node) { return node.ranks == 0; });
}

std::vector<Node> allocated_nodes(const LaunchOptions& o, const Machine& m) {
  const int available = slurm_nodes(m);
  const int count = o.nodes > 0 ? o.nodes : available;
  if (count > available) refuse("--nnodes: found {}, but no other node is known; name them with --hosts or --hostfile", count);
  const int each = o.ranks_per_node > 0 ? o.ranks_per_node : o.ranks > 0 ? (o.ranks + count - 1) / count : 1;
  std::vector<Node> nodes(count, {"", each});
  nodes[0].host = m.host;
  for (int i = 1; i < count; ++i) nodes[i].host = fmt::format("node {} of the allocation", i);
  return nodes;
}

std::vector<Node> choose_nodes(const LaunchOptions& o, const Machine& m) {
  auto nodes = o.hosts.empty() ? allocated_nodes(o, m) : nodes_from_hosts(o);
  if (o.ranks > 0 && o.ranks_per_node > 0 && o.ranks != o.ranks_per_node * static_cast<int>(nodes.size()))
    refuse("-n: found {}, but --nproc-per-node {} on {} node{} makes {}", o.ranks, o.ranks_per_node, nodes.size(),
           nodes.size() == 1 ? "" : "s", o.ranks_per_node * nodes.size());
  if (o.ranks > 0) cut_to(nodes, o.ranks);
  return nodes;
}

bool all_here(const LaunchOptions& o, const Machine& m, size_t nodes) {
  return o.hosts.empty() ? nodes == 1 : std::all_of(o.hosts.begin(), o.hosts.end(), [&](const Host& h) { return is_here(h, m); });
}

Engine choose_engine(const LaunchOptions& o, const Machine& m, bool here, LaunchPlan& plan) {
  const std::string why =
      m.mpirun.empty() ? "mpirun is not in PATH" : fmt::format("{} is not Open MPI's ('{}')", m.mpirun, m.mpi_version);
  const bool usable = m.open_mpi_major >= 4;
  if (o.engine == Engine::kLocal && !here)
    refuse("--engine local: starts ranks on this machine only; use --engine mpirun for other hosts");
  if (o.engine == Engine::kMpirun && !usable)
    refuse("--engine mpirun: {}; wanted Open MPI 4 or newer; install openmpi-bin or use --engine local", why);
  if (o.engine != Engine::kAuto) return o.engine;
  if (usable) return Engine::kMpirun;
  if (!here) refuse("--hosts: ranks on other hosts need mpirun, but {}; install openmpi-bin", why);
  if (!m.mpirun.empty()) plan.warnings.push_back(why + "; starting the ranks directly");
  return Engine::kLocal;
}

std::map<std::string, std::string> common_environment(const LaunchOptions& o, const Machine& m) {
  std::map<std::string, std::string> environment;
  if (m.terminal) environment["MUSTER_TTY"] = "1";
  if (o.verbose && !m.environment.contains("MUSTER_LOG_LEVEL")) environment["MUSTER_LOG_LEVEL"] = "debug";
  return environment;
}

std::vector<std::string> agent_command(const LaunchOptions& o, const std::string& run_folder, const Machine& m) {
  std::vector<std::string> argv = o.run.words();
  argv.insert(argv.begin(), m.agent);
  argv.insert(argv.end(), {"--run-dir", run_folder});
  return argv;
}

bool travels(const std::string& name) {
  static constexpr std::string_view kPrefixes[] = {"MUSTER_", "NCCL_", "OMP_", "MKL_", "CUDA_", "TORCH_", "UCX_"};
  return name == "LD_LIBRARY_PATH" || std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                                  [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// mpirun hands its environment to ranks of its own node only; the rest is named with -x.
std::set<std::string> passed_variables(const PlannedProcess& process, const Machine& m, bool here) {
  std::set<std::string> names;
  for (const auto& [name, value] : process.environment) names.insert(name);
  for (const auto& [name, value] : m.environment) {
    if (!here && travels(name)) names.insert(name);
  }
  return names;
}

std::string host_list(const std::vector<Node>& nodes) {
  std::vector<std::string> words;
  for (const Node& node : nodes) words.push_back(fmt::format("{}:{}", node.host, node.ranks));
  return fmt::format("{}", fmt::join(words, ","));
}

// A single machine needs no remote shell, but Open MPI 4 refuses to start without one. Newer ones look for a program too.
std::vector<std::string> without_ssh(const Machine& m) {
  if (m.open_mpi_major == 4) return {"--mca", "plm", "isolated"};
  return {"--prtemca", "plm_ssh_agent", m.true_program};
}

struct Placing {
  int ranks;
  bool here;
};

std::vector<std::string> mpirun_options(const LaunchOptions& o, const Machine& m, const std::vector<Node>& nodes,
                                        const Placing& placing) {
  std::vector<std::string> argv;
  const auto add = [&](const std::vector<std::string>& words) { argv.insert(argv.end(), words.begin(), words.end()); };
  if (!o.verbose) add({"-q"});
  add({"-np", std::to_string(placing.ranks)});
  if (!o.hosts.empty()) add({"--host", host_list(nodes)});
  if (o.hosts.empty() && nodes.size() > 1) add({"--map-by", fmt::format("ppr:{}:node", nodes[0].ranks)});
  add({"--bind-to", "none"});
  if (m.root) add({"--allow-run-as-root"});
  // Open MPI counts slots by cores, hyper-threads excepted; on one machine the user's -n is all that counts.
  if (placing.here && placing.ranks > 1)
    add(m.open_mpi_major == 4 ? std::vector<std::string>{"--oversubscribe"}
                              : std::vector<std::string>{"--map-by", ":OVERSUBSCRIBE"});
  if (placing.here && !m.ssh) add(without_ssh(m));
  return argv;
}

void plan_mpirun(const LaunchOptions& o, const Machine& m, const std::vector<Node>& nodes, bool here, LaunchPlan& plan) {
  const Placing placing{static_cast<int>(plan.ranks.size()), here};
  PlannedProcess process;
  process.environment = common_environment(o, m);
  auto options = mpirun_options(o, m, nodes, placing);
  for (const auto& name : passed_variables(process, m, here)) options.insert(options.end(), {"-x", name});
  plan.summary = fmt::format("{}: {}{}{}", m.mpi_version, fmt::join(options, " "),
                             here && placing.ranks > m.cores
                                 ? fmt::format("; {} ranks share {} core{}", placing.ranks, m.cores, m.cores == 1 ? "" : "s")
                                 : "",
                             here && !m.ssh ? "; no ssh here, and none is needed" : "");
  process.argv = {m.mpirun};
  process.argv.insert(process.argv.end(), options.begin(), options.end());
  const auto agent = agent_command(o, plan.run_folder, m);
  process.argv.insert(process.argv.end(), agent.begin(), agent.end());
  plan.processes = {process};
}

void plan_local(const LaunchOptions& o, const Machine& m, LaunchPlan& plan) {
  const auto size = std::to_string(plan.ranks.size());
  for (const RankPlace& place : plan.ranks) {
    PlannedProcess process{agent_command(o, plan.run_folder, m), common_environment(o, m)};
    const auto rank = std::to_string(place.rank);
    process.environment.insert({{"MUSTER_RANK", rank},
                                {"MUSTER_WORLD_SIZE", size},
                                {"MUSTER_LOCAL_RANK", rank},
                                {"MUSTER_LOCAL_WORLD_SIZE", size},
                                {"MUSTER_NODE", "0"},
                                {"MUSTER_NODE_COUNT", "1"},
                                {"MUSTER_MASTER_ADDR", "127.0.0.1"},
                                {"MUSTER_MASTER_PORT", std::to_string(m.free_port)},
                                {"MUSTER_JOB_TOKEN", m.token}});
    plan.processes.push_back(std::move(process));
  }
  plan.summary = fmt::format("{} agent{} started directly", size, size == "1" ? "" : "s");
}

std::string quoted(const std::string& word) {
  static constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string command_line(const PlannedProcess& process) {
  std::string line;
  for (const auto& [name, value] : process.environment) line += fmt::format("{}={} ", name, quoted(value));
  for (const auto& word : process.argv) line += quoted(word) + " ";
  line.pop_back();
  return line;
}

}  // namespace

LaunchPlan make_plan(const LaunchOptions& options, const std::string& run_dir, const Machine& machine) {
  LaunchPlan plan;
  const auto nodes = choose_nodes(options, machine);
  const bool here = all_here(options, machine, nodes.size());
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (int local = 0; local < nodes[node].ranks; ++local)
      plan.ranks.push_back({static_cast<int>(plan.ranks.size()), static_cast<int>(node), local, nodes[node].host});
  }
  plan.ranks_on_first_node = nodes[0].ranks;
  plan.run_folder = run_dir.empty() ? machine.run_folder : run_dir;
  plan.engine = choose_engine(options, machine, here, plan);
  if (plan.engine == Engine::kMpirun) {
    plan_mpirun(options, machine, nodes, here, plan);
  } else {
    plan_local(options, machine, plan);
  }
  return plan;
}

std::string to_text(const LaunchPlan& plan) {
  std::string out = fmt::format("{} ranks, engine {}, run folder {}\n", plan.ranks.size(),
                                plan.engine == Engine::kMpirun ? "mpirun" : "local", plan.run_folder);
  for (const auto& place : plan.ranks)
    out += fmt::format("  rank {}: {} (node {}, local rank {})\n", place.rank, place.host, place.node, place.local_rank);
  for (const auto& process : plan.processes) out += command_line(process) + "\n";
  return out;
}

}  // namespace muster::launcher
