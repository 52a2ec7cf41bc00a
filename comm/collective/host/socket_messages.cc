// SocketPath's messages and waits.

#include <cstring>

#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/base/log.h"
#include "comm/collective/host/socket_path.h"

namespace muster::comm::host {

// How long a wait may last before the links' health is looked at.
constexpr milliseconds kPoll{20};
// How long an ended communicator may still try to deliver.
constexpr int kLingerMs = 5000, kLingerBrokenMs = 200;
constexpr milliseconds kFarewell{1000};

SocketPath::SocketPath(std::shared_ptr<Session> session, std::string transport, std::unique_ptr<zmq::context_t> own_context,
                       std::vector<std::unique_ptr<Link>> links)
    : session_(std::move(session)), transport_(std::move(transport)), rank_(session_->rank), size_(session_->size),
      own_context_(std::move(own_context)), links_(std::move(links)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  poll_items_.push_back({nullptr, wake_fd_, ZMQ_POLLIN, 0});
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    poll_items_.push_back({links_[rank]->socket.handle(), 0, ZMQ_POLLIN, 0});
    poll_ranks_.push_back(rank);
  }
}

SocketPath::~SocketPath() {
  try {
    say_farewell();
    for (int rank : poll_ranks_) {
      const bool useful = !session_->fault.broken() && link(rank).broken.empty();
      link(rank).close(useful ? kLingerMs : kLingerBrokenMs);
    }
  } catch (const std::exception& error) {
    log_warn("host collective '{}': end of the connections: {}", session_->name, error.what());
  }
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

// A TCP socket that is closed while bytes for it arrive resets the connection and throws away what it has still to send. So
// both ends say goodbye first; a peer that goes on has, by the end of the wait, received everything.
void SocketPath::say_farewell() {
  for (int rank : poll_ranks_) link(rank).say_bye();
  const Deadline deadline = Deadline::after(session_->fault.broken() ? milliseconds(kLingerBrokenMs) : kFarewell);
  const auto gone = [&](int rank) { return !link(rank).broken.empty(); };
  while (!deadline.expired() && !std::all_of(poll_ranks_.begin(), poll_ranks_.end(), gone)) {
    receive_any();
    for (int rank : poll_ranks_) link(rank).check();
  }
}

void SocketPath::interrupt() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

void SocketPath::report() {
  const PeerError::Context fault = session_->fault.get();
  FrameHeader header = FrameHeader::of(FrameType::kFault);
  header.culprit = fault.rank >= 0 ? fault.rank : rank_;
  header.reporter = rank_;
  for (const auto& link : links_) {
    if (!link) continue;
    Frame frame(header, fault.cause.size());
    std::memcpy(frame.payload(), fault.cause.data(), fault.cause.size());
    link->send(std::move(frame));
  }
}

void SocketPath::enter(const Operation& operation) {
  // A late rank must not complete what the others have given up; their signatures may have arrived long ago.
  for (int rank : poll_ranks_) link(rank).drain();
  check_reported(operation);
  const FrameHeader header = FrameHeader::of(FrameType::kEnter, collectives_, operation.signature());
  for (int rank : poll_ranks_) link(rank).send(Frame(header, 0));
}

bool SocketPath::has_entered(int rank) const {
  const auto& entered = links_[rank]->entered;
  return !entered.empty() && entered.front().number == collectives_;
}

// All have entered this collective with the same signature.
void SocketPath::verify(const Operation& operation) {
  await(operation, [&](int rank) { return has_entered(rank); });
  check_reported(operation);
  for (int rank : poll_ranks_) {
    const Signature theirs = link(rank).entered.front().signature;
    if (theirs != operation.signature()) fail_mismatch(operation, rank_, rank, theirs);
    link(rank).entered.pop_front();
  }
}

Frame SocketPath::data_frame(size_t bytes) const { return Frame(FrameHeader::of(FrameType::kData, collectives_), bytes); }

void SocketPath::send_data(int to, const std::byte* data, size_t bytes) {
  Frame frame = data_frame(bytes);
  std::memcpy(frame.payload(), data, bytes);
  link(to).send(std::move(frame));
}

// The peer's signature came before its data and is checked before the data is used.
Frame SocketPath::receive_data(const Operation& operation, int from_rank, size_t bytes) {
  const int from = (from_rank + size_) % size_;
  Link& peer = link(from);
  await(operation, [&](int rank) { return rank != from || has_entered(from); });
  const Signature theirs = peer.entered.front().signature;
  if (theirs != operation.signature()) fail_mismatch(operation, rank_, from, theirs);
  await(operation, [&](int rank) { return rank != from || !peer.data.empty(); });
  Frame frame = std::move(peer.data.front());
  peer.data.pop_front();
  if (frame.header().number != collectives_ || frame.payload_bytes() != bytes)
    fail(operation, from, fmt::format("sent {} bytes of collective {}; wanted {} of {}", frame.payload_bytes(),
                                      frame.header().number, bytes, collectives_));
  return frame;
}

Frame SocketPath::next_mail(const Operation& operation, size_t bytes) {
  Link& from = link(operation.peer);
  await(operation, [&](int rank) { return rank != operation.peer || !from.mail.empty(); });
  Frame frame = std::move(from.mail.front());
  from.mail.pop_front();
  const FrameHeader header = frame.header();
  if (header.signature != operation.signature()) fail_mismatch(operation, rank_, operation.peer, header.signature);
  if (header.number != from.mail_received || frame.payload_bytes() != bytes)
    fail(operation, operation.peer, fmt::format("sent {} bytes as message {}; wanted {} as {}", frame.payload_bytes(),
                                                header.number, bytes, from.mail_received));
  ++from.mail_received;
  return frame;
}

void SocketPath::await(const Operation& operation, const std::function<bool(int rank)>& arrived) {
  const auto all_arrived = [&] { return std::all_of(poll_ranks_.begin(), poll_ranks_.end(), arrived); };
  while (!all_arrived()) {
    receive_any();
    if (!all_arrived()) check_health(operation, arrived);
  }
}

void SocketPath::receive_any() {
  zmq::poll(poll_items_, kPoll);
  for (size_t i = 0; i < poll_ranks_.size(); ++i)
    if (poll_items_[i + 1].revents & ZMQ_POLLIN) link(poll_ranks_[i]).drain();
}

void SocketPath::check_health(const Operation& operation, const std::function<bool(int rank)>& arrived) {
  if (session_->fault.broken()) throw PeerError(session_->fault.as_error_of(operation));
  for (int rank : poll_ranks_) link(rank).check();
  check_reported(operation);
  for (int rank : poll_ranks_)
    if (!link(rank).broken.empty() && !arrived(rank)) fail(operation, rank, link(rank).broken);
  if (session_->deadline.expired()) give_up(operation, arrived);
}

void SocketPath::check_reported(const Operation& operation) {
  for (int rank : poll_ranks_)
    if (const auto& fault = link(rank).fault) fail_reported(operation, fault->culprit, fault->reporter, link(rank).fault_text);
}

void SocketPath::give_up(const Operation& operation, const std::function<bool(int rank)>& arrived) {
  std::vector<int> late, absent;
  for (int rank : poll_ranks_) {
    if (!operation.point_to_point() && !has_entered(rank)) absent.push_back(rank);
    if (!arrived(rank)) late.push_back(rank);
  }
  fail_late(*session_, operation, late, absent);
}

}  // namespace muster::comm::host
