#include "launcher/agent/agent.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/chrono.h>
#include <poll.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/topology/devices.h"

namespace muster::launcher {
namespace {

using comm::Message;

constexpr milliseconds kTick{100};
constexpr milliseconds kTerm{2000}, kKill{3000};  // from SIGTERM to SIGKILL, and from there to giving up
constexpr size_t kMeetingParts = 4;

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal(); }

std::string default_run_dir() {
  return fmt::format("runs/{:%Y%m%d-%H%M%S}-{}", fmt::localtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())), ::getpid());
}

void make_run_dir(const std::string& path, const worker::RunConfig& config) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::ofstream out(path + "/config.yaml");
  out << worker::to_yaml(config);
  if (!out.flush()) refuse("run_dir: cannot write {}: {}", path, error ? error.message() : "check its permissions and free space");
}

}  // namespace

std::string choose_worker(worker::RunConfig& config, const comm::Environment& environment, const std::string& folder) {
  const std::string cuda = folder + "/muster-worker-cuda";
  if (config.device == "auto") {
    const bool gpu = std::filesystem::exists(cuda) && comm::visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES")) > 0;
    config.device = gpu ? "cuda" : "cpu";
  }
  if (const auto other = environment("MUSTER_WORKER")) return *other;
  if (config.device == "cpu") return folder + "/muster-worker";
  if (!std::filesystem::exists(cuda)) refuse("device: found 'cuda', but {} does not exist; build with -DMUSTER_CUDA=ON, or use --device cpu", cuda);
  return cuda;
}

struct Agent::Meeting {
  std::string problem, address, run_dir, config;
  std::string encode() const { return comm::encode({Message::Kind::kHello, 0, {problem, address, run_dir, config}}); }
  static Meeting decode(const std::string& bytes, size_t rank) {
    const auto m = comm::decode(bytes);
    if (!m || m->parts.size() != kMeetingParts) refuse("rank {}: speaks another version of Muster; install one version everywhere", rank);
    return {m->parts[0], m->parts[1], m->parts[2], m->parts[3]};
  }
};

Agent::Agent(std::vector<std::string> arguments)
    : arguments_(std::move(arguments)), environment_(comm::process_environment()), signals_(signal_descriptor({SIGTERM, SIGINT, SIGHUP})), log_(-1) {}

Agent::~Agent() = default;

int Agent::run() {
  try {
    read_config();
    start_worker();
  } catch (const InputError& e) {
    problem_ = e.what();
  }
  meet();
  if (!ended_) loop();
  worker_.reset();
  if (leader_ && !leader_->cause().empty()) fmt::print(stderr, "muster: {}\n", leader_->cause());
  return exit_code_;
}

void Agent::read_config() {
  const bool has_file = !arguments_.empty() && !arguments_[0].starts_with("--");
  config_ = worker::load_config(has_file ? arguments_[0] : "", worker::parse_overrides({arguments_.begin() + has_file, arguments_.end()}));
}

// Before the agents meet: the worker loads its libraries meanwhile, and waits to hear its place.
void Agent::start_worker() {
  std::vector<std::string> argv = {choose_worker(config_, environment_, program_folder())};
  argv.insert(argv.end(), arguments_.begin(), arguments_.end());
  argv.insert(argv.end(), {"--device", config_.device});
  worker_ = std::make_unique<WorkerProcess>(argv);
}

void Agent::meet() {
  const Deadline deadline = Deadline::after(milliseconds(static_cast<int64_t>(config_.start_timeout_s * 1000)));
  if (comm::started_by_open_mpi(environment_)) {
    rendezvous_ = comm::make_mpi_rendezvous(deadline);
  } else if (const auto place = comm::place_from_environment(environment_)) {
    rendezvous_ = comm::make_environment_rendezvous(*place);
  } else {
    rendezvous_ = comm::make_single_rendezvous();
  }
  place_ = rendezvous_->place();
  log_init(fmt::format("agent {}", place_.rank));
  log_debug("rank {} of {}, local {} of {}, node {} of {} (from {})", place_.rank, place_.world_size, place_.local_rank, place_.local_world_size,
            place_.node, place_.node_count, place_.source);
  const Meeting mine = own_meeting();
  std::vector<Meeting> all;
  for (const auto& bytes : rendezvous_->exchange(mine.encode(), deadline)) all.push_back(Meeting::decode(bytes, all.size()));
  check_meeting(all);
  if (ended_) return;
  run_dir_ = all[0].run_dir;
  log_.open(run_dir_, place_.rank);
  member_ = std::make_unique<comm::Member>(context_, comm::PlaneAddress::from_text(all[0].address), place_.rank);
  worker_->send({Message::Kind::kPlace, 0,
                 {std::to_string(place_.rank), std::to_string(place_.world_size), std::to_string(place_.local_rank),
                  std::to_string(place_.local_world_size), std::to_string(place_.node), std::to_string(place_.node_count), run_dir_}});
}

Agent::Meeting Agent::own_meeting() {
  Meeting mine;
  try {
    if (!problem_.empty()) throw InputError(problem_);
    worker::finalize_config(config_, place_.world_size);
    mine.config = worker::to_yaml(config_);
    if (place_.rank == 0) {
      mine.run_dir = absolute(config_.run_dir.empty() ? default_run_dir() : config_.run_dir);
      make_run_dir(mine.run_dir, config_);
      const std::string host = place_.node_count == 1 ? "127.0.0.1" : environment_("MUSTER_HOST_ADDRESS").value_or(comm::node_name(comm::process_environment()));
      leader_ = std::make_unique<comm::Leader>(context_, place_.world_size, host);
      mine.address = leader_->address().to_text();
    }
  } catch (const InputError& e) {
    mine.problem = e.what();
  }
  return mine;
}

// One line for all: the lowest rank with a problem shows it.
void Agent::check_meeting(const std::vector<Meeting>& all) {
  for (size_t r = 0; r < all.size(); ++r) {
    std::string problem = all[r].problem;
    if (problem.empty() && all[r].config != all[0].config) {
      problem = fmt::format("rank {} has another configuration than rank 0; give all ranks the same file and keys", r);
    }
    if (problem.empty()) continue;
    if (place_.rank == static_cast<int>(r)) fmt::print(stderr, "muster: {}\n", problem);
    exit_code_ = kExitInput;
    ended_ = true;
    return;
  }
}

void Agent::loop() {
  while (!ended_) {
    poll_once();
    if (Clock::now() - ticked_ >= kTick) {
      ticked_ = Clock::now();
      member_->on_tick();
      if (leader_) leader_->on_tick();
      escalate();
    }
    if (!ended_ && place_.rank != 0 && member_->leader_lost()) {
      if (place_.rank == 1 || place_.local_rank == 0) fmt::print(stderr, "muster: {}\n", here("agent 0 or its node is lost"));
      exit_code_ = kExitPeer;
      ended_ = true;
    }
  }
}

void Agent::poll_once() {
  std::vector<zmq::pollitem_t> items = {{member_->socket().handle(), 0, ZMQ_POLLIN, 0}, {nullptr, signals_.get(), ZMQ_POLLIN, 0}};
  if (leader_) items.push_back({leader_->socket().handle(), 0, ZMQ_POLLIN, 0});
  if (!worker_gone_) {
    for (const int fd : {worker_->link_fd(), worker_->stdout_fd(), worker_->stderr_fd(), worker_->process().poll_fd()}) {
      if (fd >= 0) items.push_back({nullptr, fd, ZMQ_POLLIN, 0});
    }
  }
  zmq::poll(items.data(), items.size(), kTick);
  if (leader_) leader_->on_readable();
  for (const auto& m : member_->receive()) on_leader_message(m);
  while (const int signal = next_signal(signals_.get())) on_signal(signal);
  if (worker_gone_) return;
  const auto state = worker_->process().exit_state();  // first, so that nothing of a dead worker is missed
  for (const auto& m : worker_->receive()) on_worker_message(m);
  drain_output();
  if (state) on_worker_exit(*state);
}

void Agent::on_worker_message(const Message& message) {
  if (message.kind == Message::Kind::kExchange) {
    tell_leader(message);
  } else if (message.kind == Message::Kind::kFailed && !reported_ && !message.parts.empty()) {
    reported_ = true;
    tell_leader({Message::Kind::kFailed, message.number, {here(message.parts[0])}});
  }
}

void Agent::on_leader_message(const Message& message) {
  if (message.kind == Message::Kind::kTable && !worker_gone_) {
    worker_->send(message);
  } else if (message.kind == Message::Kind::kStop) {
    exit_code_ = static_cast<int>(message.number);
    stop_worker();
  } else if (message.kind == Message::Kind::kEnd) {
    exit_code_ = static_cast<int>(message.number);
    ended_ = true;
  }
}

void Agent::on_worker_exit(const ExitState& state) {
  drain_output();
  log_.flush();
  worker_gone_ = true;
  worker_->process().signal_group(SIGKILL);  // what it may have left behind
  if (state.as_exit_code() != 0 && !stopping_ && !reported_) {
    const std::string how = state.signal ? fmt::format("worker killed by signal {} ({})", state.signal, signal_name(state.signal))
                                         : fmt::format("worker ended with exit code {}", state.code);
    tell_leader({Message::Kind::kFailed, state.as_exit_code(), {here(fmt::format("{}; log: {}", how, log_.path()))}});
  }
  tell_leader({Message::Kind::kGone, place_.rank, {}});
}

// mpirun, srun or a person ends this agent: no report, the whole job is ending.
void Agent::on_signal(int signal) {
  exit_code_ = 128 + signal;
  ended_ = true;
}

void Agent::drain_output() {
  if (const std::string out = worker_->read_stdout(); !out.empty()) log_.add_stdout(out);
  if (const std::string err = worker_->read_stderr(); !err.empty()) log_.add_stderr(err);
}

void Agent::stop_worker() {
  if (stopping_) return;
  stopping_ = true;
  if (worker_gone_) return;
  worker_->process().signal_group(SIGTERM);
  term_until_ = Deadline::after(kTerm);
}

void Agent::escalate() {
  if (worker_gone_) return;
  if (term_until_ && term_until_->expired()) {
    worker_->process().signal_group(SIGKILL);
    term_until_.reset();
    kill_until_ = Deadline::after(kKill);
  }
  if (kill_until_ && kill_until_->expired()) {  // unkillable: stuck in the kernel
    worker_gone_ = true;
    tell_leader({Message::Kind::kGone, place_.rank, {}});
  }
}

void Agent::tell_leader(Message message) { member_->send(message); }

std::string Agent::here(const std::string& what) const {
  return fmt::format("rank {} on {}: {}", place_.rank, comm::node_name(environment_), what);
}

}  // namespace muster::launcher
