#pragma once
// Who are we, and how do ranks agree before they can talk.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/deadline.h"

namespace muster::comm {

// A rank's place in the job. Constant for the life of a process.
struct Place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this node
  int local_world_size = 1;
  int node = 0;
  int node_count = 1;
  std::string source;        // which launcher said so: "mpi", "slurm", "torchrun", "static", "agent", "threads", "single"
};

// Everything that ranks must agree on before they can talk is one call.
//
// Threads: one thread at a time. Ownership: holds its own sockets; nothing must outlive it.
// Failure: InputError where the launcher's description of the job is contradictory, PeerError (operation "exchange")
// where a peer is gone or the deadline passes; the object cannot be used after a PeerError.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual const Place& place() const = 0;
  // Collective: every rank calls it in the same order. Blocks until all ranks have called it.
  // Returns what each rank gave, by rank.
  [[nodiscard]] virtual std::vector<std::string> exchange(std::string_view mine, Deadline deadline) = 0;
};

// World size 1.
std::unique_ptr<Rendezvous> make_single_rendezvous();

// world_size rendezvous objects that meet in this process's memory: N ranks as N threads of a test.
std::vector<std::unique_ptr<Rendezvous>> make_thread_rendezvous(int world_size);

}  // namespace muster::comm
