#pragma once
// The worker's side of its agent: a socket pair that the agent hands down (MUSTER_AGENT_FD).

#include <memory>
#include <string>

#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {

// True when this process was started by an agent.
bool has_agent();

// The rendezvous of a worker: place from the agent's environment (MUSTER_RANK, ...), exchange through the agents' control
// plane. Asks the kernel to end this process when the agent ends. One per process.
std::unique_ptr<Rendezvous> make_agent_rendezvous();

// Tells the agent why this worker is about to exit, so that the first cause is shown with its own words. No agent: nothing.
// Never throws, never blocks for longer than 100 ms.
void report_failure(const std::string& line, int exit_code) noexcept;

}  // namespace muster::comm
