// muster: one command for distributed training. No MPI and no LibTorch here: it answers in milliseconds.

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/subprocess.h"
#include "launcher/arguments.h"
#include "launcher/launch.h"
#include "launcher/memory.h"
#include "launcher/pipeline.h"
#include "launcher/topo.h"

namespace muster::launcher {
namespace {

constexpr const char* kHelp = R"(muster calls up the ranks of a training job and trains a model over all of them.

  muster launch CONFIG.yaml [-n N] [--key value ...]   train over N ranks; see muster launch --help
  muster agent  CONFIG.yaml [--key value ...]          one rank under your own mpirun, srun or torchrun
  muster memory CONFIG.yaml [-n N]                     what a rank needs of its device's memory; see muster memory --help
  muster pipeline --stages P --micro-batches M ...     a pipeline schedule as a picture; see muster pipeline --help
  muster topo   [--from FILE]                          GPUs, links, NICs and NUMA nodes; see muster topo --help
  muster --version

)";

// The agent holds MPI, so it is a program of its own.
int agent(int argc, char** argv) {
  std::string path = program_folder() + "/muster-agent";
  std::vector<char*> arguments{path.data()};
  arguments.insert(arguments.end(), argv + 2, argv + argc);
  arguments.push_back(nullptr);
  execv(path.c_str(), arguments.data());
  refuse("{}: cannot start: {}", path, std::strerror(errno));
}

[[noreturn]] void unknown_verb(const std::string& verb) {
  const std::string hint = nearest(verb, {"launch", "agent", "memory", "pipeline", "topo", "--help", "--version"});
  refuse("unknown {} '{}'{}", verb.starts_with("-") ? "option" : "verb", verb,
         hint.empty() ? "; wanted launch, agent, memory, pipeline, topo, --help or --version" : "; did you mean " + hint + "?");
}

int run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "launch") return launch({argv + 2, argv + argc});
  if (verb == "topo") return topo({argv + 2, argv + argc});
  if (verb == "agent") return agent(argc, argv);
  if (verb == "memory") return memory({argv + 2, argv + argc});
  if (verb == "pipeline") return pipeline({argv + 2, argv + argc});
  if (verb == "--version") return std::puts("muster 0.1.0"), kExitOk;
  if (!verb.empty() && verb != "--help" && verb != "-h" && verb != "help") unknown_verb(verb);
  std::fputs(kHelp, verb.empty() ? stderr : stdout);
  return verb.empty() ? kExitInput : kExitOk;
}

int fail(const char* what, int exit_code) {
  std::fprintf(stderr, "muster: %s\n", what);
  return exit_code;
}

}  // namespace
}  // namespace muster::launcher

int main(int argc, char** argv) {
  using namespace muster;
  try {
    return launcher::run(argc, argv);
  } catch (const InputError& error) {
    return launcher::fail(error.what(), kExitInput);
  } catch (const std::exception& error) {
    return launcher::fail(error.what(), kExitInternal);
  }
}
