#pragma once
// Which launcher started this process, and what it said about its place. Pure functions of an environment.

#include <map>
#include <string>

#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {

using Environment = std::map<std::string, std::string>;

Environment current_environment();

// What a launcher's environment says.
struct Bootstrap {
  enum class Kind { kSingle, kStar, kMpi };
  Kind kind = Kind::kSingle;
  Place place;                 // kMpi: node and node_count are found by the exchange
  std::string master_address;  // kStar
  int master_port = 0;         // kStar
  std::string port_variable;   // kStar: what to change when the port is taken
  std::string token;           // kStar: MUSTER_JOB_TOKEN, or empty; ranks of another job are turned away
};

// Order: MUSTER_RANK (static), Open MPI, Slurm, torchrun, PMI_RANK (MPICH's hydra), single.
// InputError naming variable, found and wanted where the values contradict each other.
Bootstrap read_bootstrap(const Environment& environment);

// A whole number from lowest to highest, or InputError naming `where`.
long long parse_number(const std::string& where, const std::string& text, long long lowest, long long highest);

}  // namespace muster::comm
