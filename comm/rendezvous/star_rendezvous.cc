#include "comm/rendezvous/star_rendezvous.h"

#include <optional>

#include <fmt/ranges.h>
#include <zmq.hpp>

#include "comm/base/bytes.h"
#include "comm/base/error.h"

namespace muster::comm {
namespace {

constexpr uint8_t kVersion = 1;
constexpr int64_t kLargestMessage = 64 << 20;  // bytes
constexpr int kLingerMs = 2000;

struct Hello {
  uint8_t version;
  int64_t rank, world_size, sequence;
  std::string token, body;
};

std::string encode(const Hello& h) {
  return ByteWriter().u8(h.version).i64(h.rank).i64(h.world_size).i64(h.sequence).text(h.token).text(h.body).take();
}

std::optional<Hello> decode_hello(std::string_view bytes) {
  ByteReader in(bytes);
  Hello h{in.u8(), in.i64(), in.i64(), in.i64(), in.text(), in.text()};
  if (!in.done()) return std::nullopt;
  return h;
}

class StarRendezvous : public Rendezvous {
 public:
  explicit StarRendezvous(const Bootstrap& b)
      : bootstrap_(b), socket_(context_, b.place.rank == 0 ? zmq::socket_type::router : zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, kLingerMs);
    socket_.set(zmq::sockopt::maxmsgsize, kLargestMessage);
    socket_.set(zmq::sockopt::ipv6, b.master_address.find(':') != std::string::npos);
    if (b.place.rank == 0) {
      bind();
    } else {
      socket_.set(zmq::sockopt::reconnect_ivl, 20);
      socket_.set(zmq::sockopt::reconnect_ivl_max, 500);
      connect();
    }
  }

  const Place& place() const override { return bootstrap_.place; }

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    auto table = place().rank == 0 ? collect(mine, deadline) : give(mine, deadline);
    ++sequence_;
    return table;
  }

 private:
  std::string endpoint(const std::string& host) const { return fmt::format("tcp://{}:{}", host, bootstrap_.master_port); }

  void bind() {
    const std::string& address = bootstrap_.master_address;
    const bool loopback = address == "127.0.0.1" || address == "localhost";
    try {
      socket_.bind(endpoint(loopback ? "127.0.0.1" : "*"));
    } catch (const zmq::error_t& error) {
      refuse("{}: cannot listen on port {}: {}; choose another", bootstrap_.port_variable, bootstrap_.master_port, error.what());
    }
  }

  void connect() {
    try {
      socket_.connect(endpoint(bootstrap_.master_address));
    } catch (const zmq::error_t& error) {
      refuse("cannot connect to rank 0 at {}: {}", endpoint(bootstrap_.master_address), error.what());
    }
  }

  // Rank 0.
  std::vector<std::string> collect(std::string_view mine, Deadline deadline) {
    std::vector<std::optional<std::string>> given(place().world_size);
    std::vector<std::string> routes(place().world_size);
    given[0] = mine;
    for (int missing = place().world_size - 1; missing > 0;) {
      zmq::message_t route, message;
      if (!receive(&route, message, deadline)) fail_missing(given, routes);
      const auto hello = decode_hello(message.to_string_view());
      if (!hello || hello->version != kVersion) continue;  // not one of ours: any program may connect to an open port
      const std::string problem = problem_of(*hello);
      if (!problem.empty()) {
        answer(route.to_string(), {}, problem);
        if (hello->token == bootstrap_.token) fail_all(routes, problem);
        continue;
      }
      if (!given[hello->rank]) --missing;
      given[hello->rank] = hello->body;
      routes[hello->rank] = route.to_string();
    }
    std::vector<std::string> table;
    for (auto& one : given) table.push_back(std::move(*one));
    for (int rank = 1; rank < place().world_size; ++rank) answer(routes[rank], table, "");
    return table;
  }

  std::string problem_of(const Hello& h) const {
    if (h.token != bootstrap_.token)
      return fmt::format("rank {} belongs to another job on port {}", h.rank, bootstrap_.master_port);
    if (h.world_size != place().world_size)
      return fmt::format("rank {} says world size {}, rank 0 says {}", h.rank, h.world_size, place().world_size);
    if (h.rank < 1 || h.rank >= place().world_size)
      return fmt::format("found rank {}, wanted 1 to {}", h.rank, place().world_size - 1);
    if (h.sequence != sequence_) return fmt::format("rank {} is in exchange #{}, rank 0 in #{}", h.rank, h.sequence, sequence_);
    return "";
  }

  [[noreturn]] void fail_missing(const std::vector<std::optional<std::string>>& given, const std::vector<std::string>& routes) {
    std::vector<int> missing;
    for (int rank = 0; rank < place().world_size; ++rank) {
      if (!given[rank]) missing.push_back(rank);
    }
    fail_all(routes, fmt::format("did not arrive before the deadline: rank {}", fmt::join(missing, " ")));
  }

  [[noreturn]] void fail_all(const std::vector<std::string>& routes, const std::string& why) {
    for (const auto& route : routes) {
      if (!route.empty()) answer(route, {}, why);
    }
    throw PeerError({-1, "exchange", sequence_, why});
  }

  void answer(const std::string& route, const std::vector<std::string>& table, const std::string& problem) {
    socket_.send(zmq::buffer(route), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    socket_.send(zmq::buffer(ByteWriter().u8(kVersion).i64(sequence_).text(problem).table(table).take()),
                 zmq::send_flags::dontwait);
  }

  // Other ranks. Half a second longer than rank 0 waits, whose answer says who is missing.
  std::vector<std::string> give(std::string_view mine, Deadline deadline) {
    const auto patience = Deadline::after(deadline.left() + milliseconds(500));
    const Hello hello{kVersion, place().rank, place().world_size, sequence_, bootstrap_.token, std::string(mine)};
    socket_.send(zmq::buffer(encode(hello)), zmq::send_flags::dontwait);
    zmq::message_t message;
    if (!receive(nullptr, message, patience))
      throw PeerError(
          {0, "exchange", sequence_, fmt::format("no answer at {} before the deadline", endpoint(bootstrap_.master_address))});
    ByteReader in(message.to_string_view());
    const bool known = in.u8() == kVersion && in.i64() == sequence_;
    const std::string problem = in.text();
    auto table = in.table();
    if (!problem.empty()) throw PeerError({-1, "exchange", sequence_, problem});
    if (!known || !in.done() || table.size() != static_cast<size_t>(place().world_size))
      throw PeerError({0, "exchange", sequence_, "sent a malformed answer; is it the same version?"});
    return table;
  }

  // False when the deadline passed. Skips malformed multi-part messages.
  bool receive(zmq::message_t* route, zmq::message_t& message, Deadline deadline) {
    while (true) {
      socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(deadline.left().count()));
      if (!socket_.recv(message)) return false;
      if (route) {
        route->move(message);
        if (!route->more() || !socket_.recv(message)) continue;
      }
      if (!message.more()) return true;
      while (message.more()) (void)socket_.recv(message);
      if (deadline.expired()) return false;
    }
  }

  const Bootstrap bootstrap_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  long long sequence_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_star_rendezvous(const Bootstrap& bootstrap) {
  return std::make_unique<StarRendezvous>(bootstrap);
}

}  // namespace muster::comm
