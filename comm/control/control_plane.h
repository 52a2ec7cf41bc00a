#pragma once
// The agents' control plane over ZeroMQ: ROUTER at the leader, DEALER at each member, encrypted with the job's own CURVE keys.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <zmq.hpp>

#include "comm/control/leader.h"

namespace muster::comm {

// The leader of agent 0 on a thread of its own, so that nothing in the agent can delay it.
// Ownership: the destructor sends what is left (1 s at most) and joins the thread. InputError where no port can be had.
class ControlServer {
 public:
  // local: all members are on this machine; listen on the loopback interface only.
  ControlServer(int world_size, bool local, ControlTiming timing = {});
  ~ControlServer();
  int port() const { return port_; }
  // Whoever knows it may join: it travels in the agents' first exchange only.
  const std::string& public_key() const { return public_key_; }

 private:
  void serve(int world_size, ControlTiming timing);
  void receive(Leader& leader);

  zmq::context_t context_;
  zmq::socket_t socket_;
  std::string public_key_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// An agent's place at the control plane. One thread. Nothing blocks. The destructor waits 1 s at most for unsent messages.
class ControlMember {
 public:
  ControlMember(const std::string& host, int port, const std::string& server_key, int rank, const std::string& own_host,
                ControlTiming timing = {});
  // For a poll: readable when there may be something to receive. Edge-triggered: call receive() after every send() too.
  zmq::socket_t& socket() { return socket_; }
  void send(const ControlMessage& message);
  std::vector<ControlMessage> receive();
  // Sends a sign of life when it is time.
  void on_tick(Clock::time_point now);
  // No sign of life from the leader for too long.
  bool leader_lost(Clock::time_point now) const;

 private:
  const ControlTiming timing_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  bool met_ = false;
  Clock::time_point heard_, beat_, ticked_;
};

}  // namespace muster::comm
