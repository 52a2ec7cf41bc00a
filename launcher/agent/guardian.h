#pragma once

#include <optional>
#include <string>

#include "comm/base/subprocess.h"
#include "comm/control/control_plane.h"
#include "comm/control/frames.h"
#include "comm/rendezvous/rendezvous.h"
#include "launcher/agent/output_relay.h"

namespace muster::launcher {

// How the whole job ended, as every agent hears it.
struct Verdict {
  int exit_code = 0;
  std::string line;   // "rank 1 on host: cause"; empty where all went well
  bool show = false;  // this agent is the one that prints it
};

// One rank's guardian: runs the worker, carries its exchanges to the leader, reports its end, and ends it when told to.
//
// One thread calls run(), which blocks until the job's end is known and the worker is gone; after a stop every stage has a
// deadline. The signals SIGCHLD, SIGTERM, SIGINT and SIGHUP must be blocked and readable at `signal_fd`.
class Guardian {
 public:
  Guardian(comm::Place place, comm::ControlMember& control, int signal_fd, const std::string& log_path,
           const std::string& shown_log_path);
  ~Guardian();
  // `worker`: program, arguments and environment; descriptors and the link are added here.
  Verdict run(Subprocess worker);

 private:
  void start_worker(Subprocess worker);
  void wait();
  void on_signals();
  void on_link();
  void on_frame(const comm::Frame& frame);
  void on_control(const comm::ControlMessage& message);
  void on_tick();
  void on_worker_end(const Ending& ending);
  void on_leader_lost();
  void fail(int64_t exit_code, bool primary, const std::string& line);
  void answer_worker(comm::FrameType type, const std::string& body);
  void flush_link();
  void stop_worker(milliseconds grace);

  const comm::Place place_;
  comm::ControlMember& control_;
  const int signal_fd_;
  const std::string shown_log_path_;
  OutputRelay relay_;
  comm::FrameReader reader_;
  std::string to_worker_;  // bytes that the link has not taken yet
  int link_ = -1;
  pid_t worker_ = -1;
  bool worker_gone_ = false, link_open_ = true, reported_ = false, stopping_ = false;
  int interrupted_ = 0;  // the signal
  std::optional<Deadline> kill_at_, give_up_at_;
  std::optional<Verdict> verdict_;
};

}  // namespace muster::launcher
