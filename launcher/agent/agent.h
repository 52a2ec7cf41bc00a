#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/rendezvous/environment.h"

namespace muster::launcher {

using MakeRendezvous = std::function<std::unique_ptr<comm::Rendezvous>(const comm::Bootstrap&)>;

// One rank's agent, from the meeting of the agents to the end of the job; returns the exit code of the job's first cause.
// Blocks SIGCHLD, SIGTERM, SIGINT and SIGHUP in this process. `make_mpi` serves jobs that mpirun started.
// InputError and PeerError where the agents cannot meet.
int run_agent(const std::vector<std::string>& words, const MakeRendezvous& make_mpi);

}  // namespace muster::launcher
