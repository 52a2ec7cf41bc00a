#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/control/plane.h"
#include "comm/rendezvous/environment.h"
#include "launcher/agent/rank_log.h"
#include "launcher/agent/worker_process.h"
#include "worker/config/run_config.h"

namespace muster::launcher {

// One rank's guardian: starts its worker, introduces it to the others, watches it, and ends it. Agent 0 also leads.
//
// Threads: one loop, on which nothing blocks once the agents have met. A worker's end is told to the leader at once; the leader
// decides the first cause; everybody ends with its exit code.
class Agent {
 public:
  // arguments: [CONFIG] [--key value ...], passed on to the worker.
  explicit Agent(std::vector<std::string> arguments);
  ~Agent();

  // Returns the exit code of the job.
  int run();

 private:
  struct Meeting;  // what agents tell each other first

  void read_config();
  void start_worker();
  void meet();
  Meeting own_meeting();
  void check_meeting(const std::vector<Meeting>& all);
  void loop();
  void poll_once();
  void on_worker_message(const comm::Message& message);
  void on_leader_message(const comm::Message& message);
  void on_worker_exit(const ExitState& state);
  void on_signal(int signal);
  void drain_output();
  void stop_worker();
  void escalate();
  void tell_leader(comm::Message message);
  std::string here(const std::string& what) const;

  const std::vector<std::string> arguments_;
  const comm::Environment environment_;
  worker::RunConfig config_;
  std::string problem_;  // an InputError before the meeting, told to all in it
  std::string run_dir_;
  UniqueFd signals_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<comm::Rendezvous> rendezvous_;
  comm::Place place_;
  RankLog log_;
  zmq::context_t context_{1};
  std::unique_ptr<comm::Leader> leader_;
  std::unique_ptr<comm::Member> member_;
  Clock::time_point ticked_{};
  bool worker_gone_ = false, reported_ = false, stopping_ = false, ended_ = false;
  std::optional<Deadline> term_until_, kill_until_;
  int exit_code_ = 0;
};

// The worker program for this configuration; resolves device "auto" (config.device becomes cpu or cuda). MUSTER_WORKER names
// another program.
std::string choose_worker(worker::RunConfig& config, const comm::Environment& environment, const std::string& folder);

}  // namespace muster::launcher
