#include "launcher/agent/guardian.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/bytes.h"
#include "comm/base/error.h"
#include "comm/base/log.h"

namespace muster::launcher {
namespace {

using comm::ControlMessage;
using comm::Frame;
using comm::FrameType;
using Type = comm::ControlMessage::Type;

constexpr int kLinkInWorker = 3;
constexpr long kTurnMs = 50;
constexpr milliseconds kStopGrace(2000);      // between SIGTERM and SIGKILL for a worker
constexpr milliseconds kInterruptGrace(600);  // the same where mpirun, which allows one second, is itself ending us
constexpr milliseconds kLastWords(500);       // for output that is still in the pipes
constexpr milliseconds kLeadersWord(3000);    // after an interrupt: for the others to end too

}  // namespace

Guardian::Guardian(comm::Place place, comm::ControlMember& control, int signal_fd, const std::string& log_path,
                   const std::string& shown_log_path)
    : place_(std::move(place)),
      control_(control),
      signal_fd_(signal_fd),
      shown_log_path_(shown_log_path),
      relay_(place_.rank, log_path) {}

Guardian::~Guardian() {
  if (worker_ > 0 && !worker_gone_) kill(-worker_, SIGKILL);
  if (link_ >= 0) close(link_);
}

Verdict Guardian::run(Subprocess worker) {
  try {
    start_worker(std::move(worker));
  } catch (const InputError& error) {
    worker_gone_ = true;
    fail(kExitInput, true, error.what());
    control_.send({Type::kGone, kExitInput, 0, "", {}});
  }
  while (!(worker_gone_ && (verdict_ || (give_up_at_ && give_up_at_->expired())))) wait();
  if (!verdict_) verdict_ = Verdict{kExitPeer, "the leader did not answer", false};
  if (interrupted_ != 0) return {128 + interrupted_, verdict_->line, false};
  return *verdict_;
}

void Guardian::start_worker(Subprocess worker) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    refuse("cannot make a socket pair for the worker: {}", std::strerror(errno));
  link_ = pair[0];
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  worker.descriptors = {{null, 0}, {relay_.child_stdout(), 1}, {relay_.child_stderr(), 2}, {pair[1], kLinkInWorker}};
  worker.environment["MUSTER_AGENT_FD"] = std::to_string(kLinkInWorker);
  worker.environment["MUSTER_AGENT_PID"] = std::to_string(getpid());
  worker.signal_at_parents_end = SIGKILL;
  worker_ = start(worker);
  close(pair[1]);
  close(null);
  relay_.child_started();
}

void Guardian::wait() {
  const short link_events = to_worker_.empty() ? ZMQ_POLLIN : ZMQ_POLLIN | ZMQ_POLLOUT;
  zmq::pollitem_t items[] = {
      {control_.socket().handle(), 0, ZMQ_POLLIN, 0}, {nullptr, signal_fd_, ZMQ_POLLIN, 0}, {nullptr, link_, link_events, 0}};
  zmq_poll(items, link_ >= 0 && link_open_ ? 3 : 2, kTurnMs);
  if (link_open_ && (items[2].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0) on_link();
  if (!to_worker_.empty()) flush_link();
  if (items[1].revents != 0) on_signals();
  for (const auto& message : control_.receive()) on_control(message);
  on_tick();
}

void Guardian::on_signals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;  // on_tick looks
    if (interrupted_ == 0) {
      interrupted_ = static_cast<int>(info.ssi_signo);
      give_up_at_ = Deadline::after(kLeadersWord);
      fail(128 + interrupted_, false, fmt::format("agent stopped by {}", signal_name(interrupted_)));
    }
    stop_worker(kInterruptGrace);
  }
}

void Guardian::on_link() {
  link_open_ = comm::read_available(link_, reader_);
  while (auto frame = reader_.next()) on_frame(*frame);
  if (reader_.error().empty() || reported_) return;
  link_open_ = false;
  fail(kExitInternal, true, "worker sent a malformed message to its agent: " + reader_.error());
}

void Guardian::on_frame(const Frame& frame) {
  ByteReader in(frame.body);
  const int64_t number = in.i64();
  if (frame.type == FrameType::kGive) {
    const int64_t wait_ms = in.i64();
    std::string contribution = in.text();
    if (!in.done() || contribution.size() > comm::kLargestGive)
      return fail(kExitInternal, true,
                  fmt::format("worker sent a malformed exchange of {} bytes to its agent", frame.body.size()));
    control_.send({Type::kGive, number, wait_ms, std::move(contribution), {}});
  } else if (frame.type == FrameType::kFailure) {
    const std::string line = in.text();
    if (!in.done()) return fail(kExitInternal, true, "worker sent a malformed failure report to its agent");
    relay_.reported(line);
    fail(number, number != kExitPeer, line);
  } else {
    fail(kExitInternal, true,
         fmt::format("worker sent frame type {}, which only agents send", static_cast<uint32_t>(frame.type)));
  }
}

void Guardian::on_control(const ControlMessage& m) {
  switch (m.type) {
    case Type::kTable: return answer_worker(FrameType::kTable, ByteWriter().i64(m.number).table(m.table).take());
    case Type::kMissing: return answer_worker(FrameType::kMissing, ByteWriter().i64(m.number).i64(m.other).text(m.text).take());
    case Type::kStop: return stop_worker(kStopGrace);
    case Type::kEnd:
      verdict_ = Verdict{static_cast<int>(m.number), m.text, place_.rank == 0};
      return stop_worker(milliseconds(0));
    default: return;
  }
}

void Guardian::answer_worker(FrameType type, const std::string& body) {
  to_worker_ += comm::encode_frame(type, body);
  flush_link();
}

// A worker that does not read ends at its own deadline; one that is gone is noticed by its end.
void Guardian::flush_link() {
  if (!link_open_ || !comm::write_available(link_, to_worker_)) to_worker_.clear();
}

void Guardian::on_tick() {
  const auto now = Clock::now();
  control_.on_tick(now);
  if (!worker_gone_) {
    if (const auto ending = ending_of(worker_)) on_worker_end(*ending);
  }
  if (!worker_gone_ && kill_at_ && kill_at_->expired()) kill(-worker_, SIGKILL);
  if (!verdict_ && place_.rank != 0 && control_.leader_lost(now)) on_leader_lost();
}

void Guardian::on_worker_end(const Ending& ending) {
  worker_gone_ = true;
  kill(-worker_, SIGKILL);  // what it may have started
  if (link_open_) on_link();
  if (ending.code != 0 && !stopping_ && !reported_) {
    fail(ending.code, ending.code != kExitPeer,
         fmt::format("worker {}{}", describe(ending), shown_log_path_.empty() ? "" : "; log: " + shown_log_path_));
  }
  relay_.finish(Deadline::after(kLastWords));
  control_.send({Type::kGone, ending.code, 0, "", {}});
}

// The lowest rank that is left speaks: rank 1, since rank 0 is the one that is gone.
void Guardian::on_leader_lost() {
  verdict_ = Verdict{kExitPeer, "rank 0: its agent is lost; the agent or its node is dead or stopped",
                     place_.rank == 1 && interrupted_ == 0};
  stop_worker(kInterruptGrace);
}

void Guardian::fail(int64_t exit_code, bool primary, const std::string& line) {
  reported_ = true;
  control_.send({Type::kFailure, exit_code, primary ? 1 : 0, line.substr(0, line.find('\n')), {}});
}

void Guardian::stop_worker(milliseconds grace) {
  const auto kill_at = Deadline::after(grace);
  if (!kill_at_ || kill_at.at() < kill_at_->at()) kill_at_ = kill_at;
  if (!stopping_ && !worker_gone_) {
    relay_.mute();
    kill(-worker_, SIGTERM);
  }
  stopping_ = true;
}

}  // namespace muster::launcher
