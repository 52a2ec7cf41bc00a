#include "comm/control/control_plane.h"

#include <charconv>

#include <signal.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/control/frames.h"

namespace muster::comm {
namespace {

constexpr int kLingerMs = 1000;
constexpr milliseconds kPoll(50);
// Longer than this between two turns of a loop: the process itself stood still.
constexpr milliseconds kStoodStill(500);

struct Keys {
  char public_key[41] = {}, secret_key[41] = {};
};

Keys make_keys() {
  Keys keys;
  if (zmq_curve_keypair(keys.public_key, keys.secret_key) != 0) throw CheckError("libzmq was built without CURVE encryption");
  return keys;
}

// Members name themselves "0", "1", ...; -1 for anything else.
int rank_of(std::string_view route) {
  int rank = -1;
  const auto [end, error] = std::from_chars(route.data(), route.data() + route.size(), rank);
  return error == std::errc() && end == route.data() + route.size() ? rank : -1;
}

}  // namespace

ControlServer::ControlServer(int world_size, bool local, ControlTiming timing) : socket_(context_, zmq::socket_type::router) {
  const Keys keys = make_keys();
  public_key_ = keys.public_key;
  socket_.set(zmq::sockopt::curve_server, 1);
  socket_.set(zmq::sockopt::curve_secretkey, keys.secret_key);
  socket_.set(zmq::sockopt::maxmsgsize, int64_t{kLargestGive} + 4096);
  socket_.set(zmq::sockopt::linger, kLingerMs);
  socket_.set(zmq::sockopt::sndhwm, 0);
  socket_.set(zmq::sockopt::rcvhwm, 0);
  try {
    socket_.bind(local ? "tcp://127.0.0.1:*" : "tcp://*:*");
  } catch (const zmq::error_t& error) {
    refuse("control plane: cannot listen on any port: {}", error.what());
  }
  const std::string endpoint = socket_.get(zmq::sockopt::last_endpoint);
  port_ = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  thread_ = std::thread([this, world_size, timing] { serve(world_size, timing); });
}

ControlServer::~ControlServer() {
  stop_ = true;
  thread_.join();
}

void ControlServer::serve(int world_size, ControlTiming timing) {
  Leader leader(world_size, timing, Clock::now(), [this](int rank, const ControlMessage& message) {
    socket_.send(zmq::buffer(std::to_string(rank)), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    socket_.send(zmq::buffer(encode(message)), zmq::send_flags::dontwait);
  });
  auto turn = Clock::now(), tick = turn;
  while (!stop_) {
    zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, kPoll.count());
    const auto now = Clock::now();
    if (now - turn > kStoodStill) leader.forgive(now - turn);
    turn = now;
    receive(leader);
    if (now - tick < timing.beat) continue;
    tick = now;
    leader.on_tick(now);
  }
}

void ControlServer::receive(Leader& leader) {
  zmq::message_t route, body;
  while (socket_.recv(route, zmq::recv_flags::dontwait)) {
    bool whole = route.more() && socket_.recv(body) && !body.more();
    while (body.more() && socket_.recv(body)) whole = false;
    const auto message = whole ? decode(body.to_string_view()) : std::nullopt;
    const int rank = rank_of(route.to_string_view());
    if (!message || rank < 0) {
      log_warn("control plane: ignored a malformed message of {} bytes from '{}'", body.size(), rank);
      continue;
    }
    leader.on_message(rank, *message, Clock::now());
  }
}

ControlMember::ControlMember(const std::string& host, int port, const std::string& server_key, int rank,
                             const std::string& own_host, ControlTiming timing)
    : timing_(timing), socket_(context_, zmq::socket_type::dealer) {
  const Keys keys = make_keys();
  if (server_key.size() != 40) throw PeerError({0, "exchange", 0, "sent a malformed control plane key"});
  socket_.set(zmq::sockopt::curve_serverkey, server_key);
  socket_.set(zmq::sockopt::curve_publickey, keys.public_key);
  socket_.set(zmq::sockopt::curve_secretkey, keys.secret_key);
  socket_.set(zmq::sockopt::routing_id, std::to_string(rank));
  socket_.set(zmq::sockopt::maxmsgsize, int64_t{kLargestFrame});
  socket_.set(zmq::sockopt::linger, kLingerMs);
  socket_.set(zmq::sockopt::sndhwm, 0);
  socket_.set(zmq::sockopt::rcvhwm, 0);
  try {
    socket_.connect(fmt::format("tcp://{}:{}", host, port));
  } catch (const zmq::error_t& error) {
    refuse("control plane: cannot connect to rank 0 at {}:{}: {}", host, port, error.what());
  }
  heard_ = beat_ = ticked_ = Clock::now();
  send({ControlMessage::Type::kHello, rank, 0, own_host, {}});
}

void ControlMember::send(const ControlMessage& message) { socket_.send(zmq::buffer(encode(message)), zmq::send_flags::dontwait); }

std::vector<ControlMessage> ControlMember::receive() {
  std::vector<ControlMessage> all;
  zmq::message_t body;
  while (socket_.recv(body, zmq::recv_flags::dontwait)) {
    auto message = decode(body.to_string_view());
    if (!message) continue;
    heard_ = Clock::now();
    met_ = true;
    if (message->type != ControlMessage::Type::kBeat) all.push_back(std::move(*message));
  }
  return all;
}

void ControlMember::on_tick(Clock::time_point now) {
  if (now - ticked_ > kStoodStill) heard_ += now - ticked_;
  ticked_ = now;
  if (now - beat_ < timing_.beat) return;
  beat_ = now;
  send({ControlMessage::Type::kBeat, 0, 0, "", {}});
}

bool ControlMember::leader_lost(Clock::time_point now) const { return now - heard_ > (met_ ? timing_.silence : timing_.join); }

}  // namespace muster::comm
