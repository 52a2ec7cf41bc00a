#include "comm/rendezvous/environment.h"

#include <charconv>

#include <unistd.h>

#include "comm/base/error.h"
#include "comm/rendezvous/slurm.h"

namespace muster::comm {
namespace {

constexpr long long kMostRanks = 1 << 20;

// Reads the variables of one launcher.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const {
    const auto found = environment_.find(name);
    return found != environment_.end() && !found->second.empty();
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    return has(name) ? environment_.at(name) : otherwise;
  }
  std::string text(const std::string& name) const {
    if (!has(name)) refuse("{}: not set; the launcher's description of this job is incomplete", name);
    return environment_.at(name);
  }
  int number(const std::string& name, long long lowest, long long highest) const {
    return static_cast<int>(parse_number(name, text(name), lowest, highest));
  }
  int number(const std::string& name, long long lowest, long long highest, int otherwise) const {
    return has(name) ? number(name, lowest, highest) : otherwise;
  }

 private:
  const Environment& environment_;
};

// An index that must lie below its count; both variables are named.
int index_below(const Reader& env, const std::string& name, const std::string& count_name, int count) {
  const int index = env.number(name, 0, kMostRanks);
  if (index >= count) refuse("{}: found {}, wanted less than {} ({})", name, index, count_name, count);
  return index;
}

int count_of(const Reader& env, const std::string& name, int at_most) {
  const int count = env.number(name, 1, kMostRanks);
  if (count > at_most) refuse("{}: found {}, wanted at most the number of ranks ({})", name, count, at_most);
  return count;
}

// The six variables that a launcher of one naming scheme sets.
struct Names {
  std::string rank, size, local_rank, local_size, node, nodes;
};

// Local values may be absent: then the job is taken to be on one node.
Place read_place(const Reader& env, const Names& names, const std::string& source) {
  Place place;
  place.source = source;
  place.world_size = env.number(names.size, 1, kMostRanks);
  place.rank = index_below(env, names.rank, names.size, place.world_size);
  place.local_world_size = env.has(names.local_size) ? count_of(env, names.local_size, place.world_size) : place.world_size;
  place.local_rank =
      env.has(names.local_rank) ? index_below(env, names.local_rank, names.local_size, place.local_world_size) : place.rank;
  if (place.local_rank >= place.local_world_size)
    refuse("{}: not set, but {} is {} and {} is {}", names.local_rank, names.rank, place.rank, names.local_size,
           place.local_world_size);
  place.node_count = env.has(names.nodes) ? count_of(env, names.nodes, place.world_size)
                                          : (place.world_size + place.local_world_size - 1) / place.local_world_size;
  place.node =
      env.has(names.node) ? index_below(env, names.node, names.nodes, place.node_count) : place.rank / place.local_world_size;
  return place;
}

void read_master(const Reader& env, Bootstrap& b, const std::string& address_name, const std::string& port_name) {
  b.kind = Bootstrap::Kind::kStar;
  b.token = env.text("MUSTER_JOB_TOKEN", "");
  b.port_variable = port_name;
  if (b.place.world_size == 1) {
    b.kind = Bootstrap::Kind::kSingle;
    return;
  }
  b.master_address = env.text(address_name);
  b.master_port = env.number(port_name, 1, 65535);
}

Bootstrap from_static(const Reader& env) {
  Bootstrap b;
  b.place = read_place(
      env,
      {"MUSTER_RANK", "MUSTER_WORLD_SIZE", "MUSTER_LOCAL_RANK", "MUSTER_LOCAL_WORLD_SIZE", "MUSTER_NODE", "MUSTER_NODE_COUNT"},
      "static");
  read_master(env, b, "MUSTER_MASTER_ADDR", "MUSTER_MASTER_PORT");
  return b;
}

Bootstrap from_torchrun(const Reader& env) {
  Bootstrap b;
  b.place =
      read_place(env, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}, "torchrun");
  // torchrun's own store listens on MASTER_PORT, so the port above it is taken.
  const bool own = env.has("MUSTER_MASTER_PORT");
  read_master(env, b, "MASTER_ADDR", own ? "MUSTER_MASTER_PORT" : "MASTER_PORT");
  if (!own && env.text("TORCHELASTIC_USE_AGENT_STORE", "") == "True" && b.master_port > 0)
    b.master_port = b.master_port % 65535 + 1;
  b.port_variable = "MUSTER_MASTER_PORT";
  return b;
}

Bootstrap from_hydra(const Reader& env) {
  Bootstrap b;
  b.place = read_place(env, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", ""}, "pmi");
  read_master(env, b, "MUSTER_MASTER_ADDR", "MUSTER_MASTER_PORT");
  return b;
}

Bootstrap from_mpi(const Reader& env) {
  Bootstrap b;
  b.kind = Bootstrap::Kind::kMpi;
  b.place = read_place(
      env, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "", ""},
      "mpi");
  return b;
}

Bootstrap from_slurm(const Reader& env) {
  Bootstrap b;
  b.place.source = "slurm";
  b.place.world_size = env.number("SLURM_NTASKS", 1, kMostRanks);
  b.place.rank = index_below(env, "SLURM_PROCID", "SLURM_NTASKS", b.place.world_size);
  const std::string tasks_name = env.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const auto tasks =
      parse_tasks_per_node(tasks_name, env.text(tasks_name, std::to_string(b.place.world_size)), b.place.world_size);
  b.place.node_count = static_cast<int>(tasks.size());
  b.place.node = index_below(env, "SLURM_NODEID", tasks_name + "'s nodes", b.place.node_count);
  b.place.local_world_size = tasks[b.place.node];
  b.place.local_rank = index_below(env, "SLURM_LOCALID", tasks_name, b.place.local_world_size);
  b.token = env.text("MUSTER_JOB_TOKEN", "");
  b.port_variable = "MUSTER_MASTER_PORT";
  if (b.place.world_size == 1) return b;
  b.kind = Bootstrap::Kind::kStar;
  b.master_address =
      slurm_master(env.text("MUSTER_MASTER_ADDR", ""), env.text("SLURM_STEP_NODELIST", env.text("SLURM_JOB_NODELIST", "")),
                   env.text("SLURM_LAUNCH_NODE_IPADDR", ""), b.place.node_count);
  b.master_port = env.number("MUSTER_MASTER_PORT", 1, 65535,
                             slurm_port(parse_number("SLURM_JOB_ID", env.text("SLURM_JOB_ID", "0"), 0, 1LL << 40)));
  return b;
}

}  // namespace

Environment current_environment() {
  Environment out;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

long long parse_number(const std::string& where, const std::string& text, long long lowest, long long highest) {
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest || value > highest)
    refuse("{}: found '{}', wanted a whole number from {} to {}", where, text, lowest, highest);
  return value;
}

Bootstrap read_bootstrap(const Environment& environment) {
  const Reader env(environment);
  if (env.has("MUSTER_RANK")) return from_static(env);
  if (env.has("OMPI_COMM_WORLD_RANK")) return from_mpi(env);
  if (env.has("SLURM_PROCID") && env.has("SLURM_NTASKS")) return from_slurm(env);
  if (env.has("RANK") && env.has("WORLD_SIZE")) return from_torchrun(env);
  if (env.has("PMI_RANK")) return from_hydra(env);
  Bootstrap single;
  single.place.source = "single";
  return single;
}

}  // namespace muster::comm
