#include "comm/collective/host/socket_link.h"

#include <cstring>

// Tells the thread sanitizer, which cannot see into libzmq, that a message goes from one thread to another.
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define MUSTER_HAND_OVER(message) __tsan_release((message).data())
#define MUSTER_TAKE_OVER(message) __tsan_acquire((message).data())
#else
#define MUSTER_HAND_OVER(message)
#define MUSTER_TAKE_OVER(message)
#endif

namespace muster::comm::host {
namespace {

// A lost node: no answer to heartbeats. ZeroMQ's own thread answers, so a busy rank still does.
constexpr int kHeartbeatMs = 1000, kHeartbeatTimeoutMs = 10'000;
constexpr int kDayMs = 86'400'000;

std::string monitor_name() {
  static std::atomic<uint64_t> next{0};
  return fmt::format("inproc://muster-monitor-{}", next++);
}

}  // namespace

Frame::Frame(const FrameHeader& header, size_t payload_bytes) : message_(sizeof(FrameHeader) + payload_bytes) {
  std::memcpy(message_.data(), &header, sizeof header);
}

FrameHeader Frame::header() const {
  FrameHeader header;
  std::memcpy(&header, message_.data(), sizeof header);
  return header;
}

std::optional<Frame> Frame::parse(zmq::message_t message) {
  if (message.size() < sizeof(FrameHeader)) return std::nullopt;
  Frame frame(std::move(message));
  const FrameHeader header = frame.header();
  if (header.magic != FrameHeader::kMagic || header.type > FrameType::kBye) return std::nullopt;
  return frame;
}

Link::Link(zmq::context_t& context, bool watch) : socket(context, zmq::socket_type::pair) {
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, 0);
  // A lost connection is an error, not a pause. Never trying again (-1) would throw away what has arrived and is not yet read.
  socket.set(zmq::sockopt::reconnect_ivl, kDayMs);
  if (!watch) return;
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
  socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
  const std::string name = monitor_name();
  if (zmq_socket_monitor(socket.handle(), name.c_str(), ZMQ_EVENT_DISCONNECTED) != 0) throw zmq::error_t();
  monitor.emplace(context, zmq::socket_type::pair);
  monitor->connect(name);
}

std::string Link::bind(const std::string& endpoint) {
  socket.bind(endpoint);
  return socket.get(zmq::sockopt::last_endpoint);
}

void Link::send(Frame frame) {
  if (!broken.empty()) return;  // whoever waits for this peer will say so
  MUSTER_HAND_OVER(frame.message());
  if (!socket.send(frame.message(), zmq::send_flags::dontwait)) broken = "its connection is gone";
}

void Link::say_bye() {
  Frame frame(FrameHeader::of(FrameType::kBye), 0);
  MUSTER_HAND_OVER(frame.message());
  (void)socket.send(frame.message(), zmq::send_flags::dontwait);
}

bool Link::drain() {
  bool any = false;
  zmq::message_t message;
  while (socket.recv(message, zmq::recv_flags::dontwait)) {
    any = true;
    MUSTER_TAKE_OVER(message);
    std::optional<Frame> frame = Frame::parse(std::move(message));
    if (frame) {
      sort(std::move(*frame));
    } else {
      broken = "sent bytes that are no message of Muster";
    }
    message.rebuild();
  }
  return any;
}

void Link::sort(Frame frame) {
  const FrameHeader header = frame.header();
  switch (header.type) {
    case FrameType::kHello: hello = frame.text(); break;
    case FrameType::kEnter: entered.push_back(header); break;
    case FrameType::kData: data.push_back(std::move(frame)); break;
    case FrameType::kMail: mail.push_back(std::move(frame)); break;
    case FrameType::kFault:
      fault = header;
      fault_text = frame.text();
      break;
    case FrameType::kBye: broken = "has closed its communicator"; break;
  }
}

void Link::check() {
  if (!monitor) return;
  zmq::message_t event;
  while (monitor->recv(event, zmq::recv_flags::dontwait)) {
    if (event.more()) continue;  // the event; its second part, the address, tells that it is whole
    drain();                     // what was sent before the end still counts
    if (broken.empty()) broken = "its connection is gone; has its process or node ended?";
  }
}

void Link::close(int linger_ms) {
  if (monitor) zmq_socket_monitor(socket.handle(), nullptr, 0);
  if (monitor) monitor->close();
  socket.set(zmq::sockopt::linger, linger_ms);
  socket.close();
}

}  // namespace muster::comm::host
