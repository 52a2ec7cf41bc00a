#pragma once
// One pair of ranks, one ZeroMQ PAIR socket at each end.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <zmq.hpp>

#include "comm/base/deadline.h"
#include "comm/collective/host/operation.h"

namespace muster::comm::host {

enum class FrameType : uint8_t { kHello, kEnter, kData, kMail, kFault, kBye };

// Each message is one frame: this header, then the payload.
struct FrameHeader {
  static constexpr uint32_t kMagic = 0x3172734d;  // "Msr1"
  uint32_t magic = kMagic;
  FrameType type = FrameType::kBye;
  uint8_t spare[3] = {};
  int32_t culprit = -1;   // kFault
  int32_t reporter = -1;  // kFault
  uint64_t number = 0;    // kEnter, kData: of the collective; kMail: of the message in this direction
  Signature signature;    // kEnter, kMail
  uint8_t padding[24] = {};

  static FrameHeader of(FrameType type, uint64_t number = 0, Signature signature = {}) {
    FrameHeader header;
    header.type = type;
    header.number = number;
    header.signature = signature;
    return header;
  }
};
static_assert(sizeof(FrameHeader) == 64);

// A frame that is being built or has arrived.
class Frame {
 public:
  Frame(const FrameHeader& header, size_t payload_bytes);
  // Nothing where the message is no frame of ours.
  static std::optional<Frame> parse(zmq::message_t message);
  FrameHeader header() const;
  std::byte* payload() { return static_cast<std::byte*>(message_.data()) + sizeof(FrameHeader); }
  size_t payload_bytes() const { return message_.size() - sizeof(FrameHeader); }
  std::string text() { return {reinterpret_cast<const char*>(payload()), payload_bytes()}; }
  zmq::message_t& message() { return message_; }

 private:
  explicit Frame(zmq::message_t message) : message_(std::move(message)) {}
  zmq::message_t message_;
};

// Threads: one at a time. Ownership: the context outlives it. Failure: the connection is gone, or the peer sent something
// else than frames: `broken` says why. Blocking: nothing here does; a send is queued without limit.
struct Link {
  enum class End { kBind, kConnect };

  // watch: have ZeroMQ report when the connection ends (inproc knows no such event).
  Link(zmq::context_t& context, bool watch);

  std::string bind(const std::string& endpoint);  // returns the endpoint to connect to
  void connect(const std::string& endpoint) { socket.connect(endpoint); }
  void send(Frame frame);
  // Moves all that has arrived into the queues. Returns whether there was anything.
  bool drain();
  // Looks whether the connection has ended.
  void check();
  void say_bye();  // also to a peer that has said it before, and waits for ours
  void close(int linger_ms);

  zmq::socket_t socket;
  std::optional<zmq::socket_t> monitor;
  std::string broken;                // why nothing more will come; empty while well
  std::deque<FrameHeader> entered;   // collectives that the peer has called, not yet ours
  std::deque<Frame> data, mail;
  std::optional<std::string> hello;
  std::optional<FrameHeader> fault;
  std::string fault_text;
  uint64_t mail_sent = 0, mail_received = 0;

 private:
  void sort(Frame frame);
};

}  // namespace muster::comm::host
