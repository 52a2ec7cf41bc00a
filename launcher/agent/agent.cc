#include "launcher/agent/agent.h"

#include <csignal>
#include <cstdio>
#include <optional>

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/rendezvous/star_rendezvous.h"
#include "launcher/agent/guardian.h"
#include "launcher/agent/introduction.h"
#include "launcher/agent/run_folder.h"
#include "launcher/arguments.h"
#include "launcher/device_choice.h"
#include "launcher/outcome.h"

namespace muster::launcher {
namespace {

using comm::Bootstrap;
using comm::Environment;
using comm::Place;

constexpr int kShutdownMs = 5000;  // MPI_Finalize may wait for a rank that is gone

// Before any thread exists, so that all inherit it.
int block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// The daemon that started us may be killed; then nobody else would tell us.
void end_with_launcher(const Bootstrap& bootstrap) {
  if (bootstrap.place.source == "mpi" || bootstrap.place.source == "slurm" || bootstrap.place.source == "pmi")
    prctl(PR_SET_PDEATHSIG, SIGTERM);
}

std::unique_ptr<comm::Rendezvous> meet(const Bootstrap& bootstrap, const MakeRendezvous& make_mpi) {
  switch (bootstrap.kind) {
    case Bootstrap::Kind::kMpi: return make_mpi(bootstrap);
    case Bootstrap::Kind::kStar: return comm::make_star_rendezvous(bootstrap);
    default: return comm::make_single_rendezvous();
  }
}

// What this rank decides on its own before it meets the others.
struct Preparation {
  RunArguments arguments;
  worker::RunConfig config;
  DeviceChoice device;
  std::unique_ptr<comm::ControlServer> server;  // rank 0
  Introduction introduction;
};

void prepare(Preparation& p, const std::vector<std::string>& words, const Place& place, const Environment& environment) {
  p.introduction.host = host_name();
  try {
    p.arguments = read_run_arguments(words);
    p.config = checked_config(p.arguments, place.world_size);
    p.device = choose_device(p.config.device, place.local_world_size, program_folder(), environment);
    if (place.rank != 0) return;
    p.introduction.run_folder = make_run_folder(p.config);
    p.server = std::make_unique<comm::ControlServer>(place.world_size, place.node_count == 1);
    p.introduction.port = p.server->port();
    p.introduction.key = p.server->public_key();
    p.introduction.address = place.node_count == 1 ? "127.0.0.1" : own_address();
  } catch (const InputError& error) {
    p.introduction.error = error.what();
  }
}

std::vector<Introduction> exchange_introductions(comm::Rendezvous& rendezvous, const Preparation& p) {
  const auto patience = milliseconds(static_cast<int64_t>(p.config.start_timeout_s * 1000));
  const auto texts = rendezvous.exchange(to_text(p.introduction), Deadline::after(patience));
  std::vector<Introduction> all;
  for (size_t rank = 0; rank < texts.size(); ++rank) all.push_back(introduction_from(texts[rank], static_cast<int>(rank)));
  return all;
}

// The lowest rank that refuses speaks for all: one cause, one line.
bool refused(const std::vector<Introduction>& all, int rank) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].error.empty()) continue;
    if (static_cast<int>(i) == rank) std::fprintf(stderr, "muster: %s\n", all[i].error.c_str());
    return true;
  }
  return false;
}

bool belongs_to_launcher(const std::string& name) {
  return name.starts_with("OMPI_") || name.starts_with("PMIX_") || name.starts_with("PMI_") || name.starts_with("PRTE_") ||
         name.starts_with("MUSTER_MASTER_") || name == "MUSTER_JOB_TOKEN";
}

// A worker holds no MPI, and nothing in it should believe that it does.
Environment worker_environment(const Place& place, const std::string& run_folder) {
  Environment environment = comm::current_environment();
  std::erase_if(environment, [](const auto& entry) { return belongs_to_launcher(entry.first); });
  const auto set = [&](const char* name, int value) { environment[name] = std::to_string(value); };
  set("MUSTER_RANK", place.rank);
  set("MUSTER_WORLD_SIZE", place.world_size);
  set("MUSTER_LOCAL_RANK", place.local_rank);
  set("MUSTER_LOCAL_WORLD_SIZE", place.local_world_size);
  set("MUSTER_NODE", place.node);
  set("MUSTER_NODE_COUNT", place.node_count);
  environment["MUSTER_RUN_DIR"] = run_folder;
  return environment;
}

Subprocess worker_process(const Preparation& p, const Place& place, const std::string& run_folder) {
  Subprocess worker;
  worker.argv = p.arguments.words();
  worker.argv.insert(worker.argv.begin(), p.device.worker);
  for (const std::string& word : {std::string("--run-dir"), run_folder, std::string("--device"), p.device.device})
    worker.argv.push_back(word);
  worker.environment = worker_environment(place, run_folder);
  return worker;
}

Verdict guard(const Preparation& p, const Place& place, const Introduction& leader, int signal_fd) {
  const std::string host = place.node == 0 ? "127.0.0.1" : leader.address;
  comm::ControlMember member(host, leader.port, leader.key, place.rank, p.introduction.host);
  const std::string log_path = log_path_in(leader.run_folder, place.rank);
  Guardian guardian(place, member, signal_fd, log_path, log_path.empty() ? "" : shown_path(log_path));
  return guardian.run(worker_process(p, place, leader.run_folder));
}

// The one line at the end, and the same for programs.
void conclude(const Verdict& verdict, const std::string& run_folder) {
  write_outcome(run_folder, {verdict.exit_code, verdict.line});
  if (verdict.exit_code != 0) std::fprintf(stderr, "muster: %s\n", verdict.line.c_str());
}

int run_job(comm::Rendezvous& rendezvous, const std::vector<std::string>& words, int signal_fd) {
  const Place place = rendezvous.place();
  log_init(fmt::format("agent {}", place.rank));
  Preparation p;
  prepare(p, words, place, comm::current_environment());
  const auto all = exchange_introductions(rendezvous, p);
  if (refused(all, place.rank)) return kExitInput;
  if (place.rank == 0) {
    log_info("{} rank{} on {} node{} (from {}), {}; run folder {}", place.world_size, place.world_size == 1 ? "" : "s",
             place.node_count, place.node_count == 1 ? "" : "s", place.source, p.device.device, shown_path(all[0].run_folder));
  }
  const Verdict verdict = guard(p, place, all[0], signal_fd);
  if (verdict.show) conclude(verdict, all[0].run_folder);
  return verdict.exit_code;
}

[[noreturn]] void leave(int exit_code) {
  std::fflush(nullptr);
  _exit(exit_code);
}

}  // namespace

int run_agent(const std::vector<std::string>& words, const MakeRendezvous& make_mpi) {
  const int signal_fd = block_signals();
  const Bootstrap bootstrap = comm::read_bootstrap(comm::current_environment());
  end_with_launcher(bootstrap);
  const auto rendezvous = meet(bootstrap, make_mpi);
  const int exit_code = run_job(*rendezvous, words, signal_fd);
  // After a failure MPI_Finalize would wait for ranks that are gone, or hang: mpirun ends the job without it.
  if (exit_code != 0 && bootstrap.kind == Bootstrap::Kind::kMpi) leave(exit_code);
  exit_hard_after(kShutdownMs, exit_code);
  return exit_code;
}

}  // namespace muster::launcher
