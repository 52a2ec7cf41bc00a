// muster-agent: one rank's guardian, started by mpirun, srun, torchrun or muster launch.
//
//   muster-agent [CONFIG.yaml] [--key value ...]

#include <cstdio>

#include "comm/base/error.h"
#include "comm/rendezvous/star_rendezvous.h"
#include "launcher/agent/agent.h"

namespace {

int fail(const char* what, int exit_code) {
  std::fprintf(stderr, "muster: %s\n", what);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace muster;
  try {
    return launcher::run_agent({argv + 1, argv + argc}, comm::make_mpi_rendezvous);
  } catch (const InputError& error) {
    return fail(error.what(), kExitInput);
  } catch (const PeerError& error) {
    return fail(error.what(), kExitPeer);
  } catch (const std::exception& error) {
    return fail(error.what(), kExitInternal);
  }
}
