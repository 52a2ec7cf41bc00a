#pragma once

#include "comm/rendezvous/environment.h"

namespace muster::comm {

// Ranks that know rank 0's address and port, from a launcher's environment: rank 0 collects, then hands the table out.
// Rank 0 binds at once: InputError naming port and variable where the port is taken. The others connect within the
// deadline of their first exchange. Ranks whose token or world size differs are refused by name.
std::unique_ptr<Rendezvous> make_star_rendezvous(const Bootstrap& bootstrap);

// The rendezvous over MPI: MPI_Init at once, MPI_Finalize in the destructor. mpi_rendezvous_absent.cc: InputError.
std::unique_ptr<Rendezvous> make_mpi_rendezvous(const Bootstrap& bootstrap);

}  // namespace muster::comm
