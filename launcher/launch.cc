#include "launcher/launch.h"

#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "launcher/device_choice.h"
#include "launcher/launch_plan.h"
#include "launcher/outcome.h"
#include "launcher/supervisor.h"

namespace muster::launcher {
namespace {

// A place that this process was given itself is not the place of the ranks.
comm::Environment without_place(comm::Environment environment) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE", "NODE_COUNT", "AGENT_FD", "AGENT_PID", "TTY"})
    environment.erase(std::string("MUSTER_") + name);
  return environment;
}

std::vector<Subprocess> processes_of(const LaunchPlan& plan, const Machine& machine, int null_fd) {
  std::vector<Subprocess> out;
  const auto inherited = without_place(machine.environment);
  for (const auto& planned : plan.processes) {
    Subprocess process;
    process.argv = planned.argv;
    process.environment = planned.environment;
    process.environment.insert(inherited.begin(), inherited.end());
    process.descriptors = {{null_fd, 0}, {1, 1}, {2, 2}};
    process.signal_at_parents_end = SIGTERM;
    out.push_back(std::move(process));
  }
  return out;
}

// An exit code that stands for a signal, as mpirun and shells pass it on.
Ending as_signal(const Ending& ending) {
  return ending.code > 128 && ending.signal == 0 ? Ending{ending.code, ending.code - 128} : ending;
}

std::string who(const Supervision& s, const LaunchPlan& plan) {
  if (plan.engine == Engine::kLocal) return fmt::format("the agent of rank {}", s.first_bad);
  return s.first_ending.signal == 0 && s.exit_code > 128 ? "an agent was" : "mpirun";
}

// The agents name the cause. Only where none of them could, the launcher says what it saw. Agents that refuse their input
// or cannot meet have said so before there was a run to have an outcome.
void explain(const Supervision& s, const LaunchPlan& plan) {
  if (s.interrupted_by != 0) {
    std::fprintf(stderr, "muster: stopped by %s; run folder: %s\n", signal_name(s.interrupted_by).c_str(),
                 plan.run_folder.c_str());
    return;
  }
  if (s.exit_code == 0 || s.exit_code == kExitInput || s.exit_code == kExitPeer || read_outcome(plan.run_folder)) return;
  std::fprintf(stderr, "muster: %s %s; --verbose shows more; run folder: %s\n", who(s, plan).c_str(),
               describe(as_signal(s.first_ending)).c_str(), plan.run_folder.c_str());
}

void log_plan(const LaunchPlan& plan) {
  for (const auto& warning : plan.warnings) log_warn("{}", warning);
  if (plan.engine == Engine::kMpirun) {
    log_info("passed to {}", plan.summary);
  } else {
    log_info("{}", plan.summary);
  }
}

}  // namespace

int launch(const std::vector<std::string>& words) {
  const LaunchOptions options = parse_launch_options(words);
  if (options.help) {
    std::fputs(launch_help().c_str(), stdout);
    return kExitOk;
  }
  const Machine machine = machine_facts();
  const std::string run_dir = worker::load_config(options.run.config_path, worker::parse_overrides(options.run.settings)).run_dir;
  const LaunchPlan plan = make_plan(options, run_dir, machine);
  const auto config = checked_config(options.run, static_cast<int>(plan.ranks.size()));
  choose_device(config.device, plan.ranks_on_first_node, machine.agent.substr(0, machine.agent.rfind('/')), machine.environment);
  if (options.dry_run) {
    std::fputs(to_text(plan).c_str(), stdout);
    return kExitOk;
  }
  log_plan(plan);
  forget_outcome(plan.run_folder);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const auto end = supervise(processes_of(plan, machine, null_fd), milliseconds(static_cast<int64_t>(options.grace_s * 1000)));
  close(null_fd);
  explain(end, plan);
  return end.exit_code;
}

}  // namespace muster::launcher
