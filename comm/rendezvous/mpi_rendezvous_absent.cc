#include "comm/base/error.h"
#include "comm/rendezvous/star_rendezvous.h"

namespace muster::comm {

std::unique_ptr<Rendezvous> make_mpi_rendezvous(const Bootstrap&) {
  refuse(
      "OMPI_COMM_WORLD_RANK: set by mpirun, but this muster-agent was built without MPI; install libopenmpi-dev and build again, "
      "or use "
      "muster launch --engine local");
}

}  // namespace muster::comm
