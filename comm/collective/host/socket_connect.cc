// How the links of a SocketPath come up: lower ranks bind, higher ranks connect, both show a secret of the pair.

#include <cstdlib>
#include <random>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/collective/host/socket_path.h"

namespace muster::comm::host {
namespace {

using Json = nlohmann::json;
using Links = std::vector<std::unique_ptr<Link>>;

std::string random_word() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

// The address that a packet to the outside would leave from; no packet is sent.
std::string default_route_address() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(0xc0000201);  // 192.0.2.1, reserved for documentation
  socklen_t size = sizeof address;
  const bool known = fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  char text[INET_ADDRSTRLEN] = {};
  if (!known || inet_ntop(AF_INET, &address.sin_addr, text, sizeof text) == nullptr)
    refuse("no default route to tell this node's address; set MUSTER_HOST_ADDRESS to an IPv4 address that the other nodes reach");
  return text;
}

std::string own_address(bool one_node) {
  const char* given = std::getenv("MUSTER_HOST_ADDRESS");
  if (given == nullptr || *given == 0) return one_node ? "127.0.0.1" : default_route_address();
  in_addr parsed;
  if (inet_pton(AF_INET, given, &parsed) != 1)
    refuse("MUSTER_HOST_ADDRESS: found '{}', wanted an IPv4 address of this node", given);
  return given;
}

// ipc in the abstract namespace, which leaves no file.
std::string endpoint_to_bind(const std::string& transport, bool one_node) {
  if (transport == "tcp") return fmt::format("tcp://{}:*", own_address(one_node));
  return fmt::format("{}://{}muster-{}", transport, transport == "ipc" ? "@" : "", random_word());
}

// inproc works within one context only. Never destroyed: its threads end with the process.
zmq::context_t& process_context() {
  static auto* const context = new zmq::context_t(0);
  return *context;
}

// Where the higher ranks find this one, and the secret of each pair.
Json bind_links(const Session& session, const std::string& transport, bool one_node, Links& links) {
  Json doors = Json::object();
  for (int peer = session.rank + 1; peer < session.size; ++peer) {
    const std::string endpoint = endpoint_to_bind(transport, one_node);
    try {
      doors[std::to_string(peer)] = {links[peer]->bind(endpoint), random_word()};
    } catch (const zmq::error_t& error) {
      refuse("cannot bind {}: {}; MUSTER_HOST_ADDRESS sets the address", endpoint, error.what());
    }
  }
  return doors;
}

// [endpoint, secret] of the door that `rank` keeps for `peer`.
std::pair<std::string, std::string> door_of(const Json& doors, int rank, int peer) {
  try {
    return doors.at(std::to_string(peer)).get<std::pair<std::string, std::string>>();
  } catch (const Json::exception& error) {
    throw PeerError({rank, "connect", -1, fmt::format("no endpoint for rank {}: {}", peer, error.what())});
  }
}

void say_hello(Link& link, const std::string& secret) {
  Frame frame(FrameHeader::of(FrameType::kHello), secret.size());
  secret.copy(reinterpret_cast<char*>(frame.payload()), secret.size());
  link.send(std::move(frame));
}

void await_hello(Link& link, int peer, const std::string& secret, Deadline deadline) {
  while (!link.hello && link.broken.empty()) {
    if (deadline.expired()) throw PeerError({peer, "connect", -1, "did not connect before the deadline"});
    zmq::pollitem_t item{link.socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, std::min(milliseconds(50), deadline.left()));
    link.drain();
    link.check();
  }
  if (link.hello != secret)
    throw PeerError({peer, "connect", -1, link.hello ? "a stranger is at its endpoint" : link.broken});
}

}  // namespace

std::unique_ptr<DataPath> connect_sockets(Rendezvous& rendezvous, const std::shared_ptr<Session>& session,
                                          const std::string& transport, bool one_node) {
  const int rank = session->rank, size = session->size;
  const Deadline deadline = Deadline::after(session->timeout);
  const bool inproc = transport == "inproc";
  auto context = inproc ? nullptr : std::make_unique<zmq::context_t>(1);
  Links links(size);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) links[peer] = std::make_unique<Link>(inproc ? process_context() : *context, !inproc);

  const Json mine = bind_links(*session, transport, one_node, links);
  std::vector<Json> doors;
  for (const std::string& text : rendezvous.exchange(mine.dump(), deadline)) doors.push_back(Json::parse(text, nullptr, false));
  for (int peer = 0; peer < rank; ++peer) {
    const auto [endpoint, secret] = door_of(doors[peer], peer, rank);
    links[peer]->connect(endpoint);
    say_hello(*links[peer], secret);
  }
  for (int peer = rank + 1; peer < size; ++peer) {
    const auto secret = door_of(mine, rank, peer).second;
    await_hello(*links[peer], peer, secret, deadline);
    say_hello(*links[peer], secret);
  }
  for (int peer = 0; peer < rank; ++peer) await_hello(*links[peer], peer, door_of(doors[peer], peer, rank).second, deadline);
  return std::make_unique<SocketPath>(session, transport, std::move(context), std::move(links));
}

}  // namespace muster::comm::host
