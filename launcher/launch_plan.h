#pragma once
// A launch as a value: options and machine in, ranks, places, environment and exact commands out.

#include <map>
#include <string>
#include <vector>

#include "comm/rendezvous/environment.h"
#include "launcher/launch_options.h"

namespace muster::launcher {

// What the plan needs to know about the machine. machine_facts() looks; tests write their own.
struct Machine {
  std::string host = "localhost";
  bool root = false;
  int cores = 1;
  std::string mpirun;       // path; empty: none
  std::string mpi_version;  // first line of mpirun --version
  int open_mpi_major = 0;   // 0: not Open MPI
  bool ssh = false;         // ssh or rsh is in PATH
  std::string agent;        // path of muster-agent
  std::string true_program = "/bin/true";
  bool terminal = false;   // stdout is one
  int free_port = 0;       // for the local engine
  std::string token;       // of this job
  std::string run_folder;  // where run_dir says nothing
  comm::Environment environment;
};

struct RankPlace {
  int rank, node, local_rank;
  std::string host;
};

struct PlannedProcess {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;  // added to the launcher's own
};

struct LaunchPlan {
  Engine engine = Engine::kLocal;
  std::vector<RankPlace> ranks;
  std::vector<PlannedProcess> processes;  // one mpirun, or one agent a rank
  std::vector<std::string> warnings;
  std::string summary;  // one line: what was passed to mpirun and why
  int ranks_on_first_node = 1;
  std::string run_folder;  // as given to the agents
};

// Pure. InputError where options contradict each other or the machine.
LaunchPlan make_plan(const LaunchOptions& options, const std::string& run_dir, const Machine& machine);

// For --dry-run.
std::string to_text(const LaunchPlan& plan);

Machine machine_facts();

}  // namespace muster::launcher
