// muster-agent: one rank under mpirun, srun, torchrun or `muster launch`. See `muster agent --help`.

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <sys/prctl.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "launcher/agent/agent.h"

int main(int argc, char** argv) {
  using namespace muster;
  ::signal(SIGPIPE, SIG_IGN);
  // Whoever started this agent (mpirun, a Slurm step, `muster launch`) takes it along when it ends.
  if (::getppid() > 1) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  try {
    return launcher::Agent({argv + 1, argv + argc}).run();
  } catch (const InputError& e) {
    std::fprintf(stderr, "muster: %s\n", e.what());
    return kExitInput;
  } catch (const PeerError& e) {
    std::fprintf(stderr, "muster: %s\n", e.what());
    return kExitPeer;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "muster: %s\n", e.what());
    return kExitInternal;
  }
}
