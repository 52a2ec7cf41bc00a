#include "comm/collective/host/socket_path.h"

#include <bit>
#include <cstring>

#include "comm/collective/host/reduce.h"

namespace muster::comm::host {
namespace {

// Up to this size the number of steps matters more than the number of bytes.
constexpr size_t kSmallBytes = 32 << 10;
// A slice travels in pieces, so that a rank works on one while the next is under way.
constexpr size_t kPieceBytes = 256 << 10;

// Calls body(first element, elements) for each piece; once for an empty range.
template <typename Body>
void for_pieces(size_t first, size_t count, size_t width, const Body& body) {
  const size_t step = kPieceBytes / width;
  size_t done = 0;
  do {
    body(first + done, std::min(step, count - done));
    done += step;
  } while (done < count);
}

}  // namespace

// Sends never wait, so this order cannot lock up: whatever a peer waits for from here has been sent.
void SocketPath::run(std::span<const Operation> operations) {
  for (const Operation& operation : operations)
    if (operation.kind == OpKind::kSend) send_mail(operation);
  for (const Operation& operation : operations)
    if (!operation.point_to_point()) collective(operation);
  for (const Operation& operation : operations)
    if (operation.kind == OpKind::kRecv) receive_mail(operation);
}

void SocketPath::collective(const Operation& op) {
  enter(op);
  switch (op.kind) {
    case OpKind::kAllReduce:
      if (op.bytes() <= kSmallBytes) {
        all_reduce_small(op);
      } else {
        const Slices slices = equal_slices(op);
        ring_reduce(op, slices, op.out + slices[rank_].first * size_of(op.dtype));
        ring_gather(op, slices);
      }
      break;
    case OpKind::kReduceScatter: ring_reduce(op, given_slices(op), op.out); break;
    case OpKind::kAllGather:
      if (op.bytes() > 0) std::memmove(op.out + rank_ * op.bytes(), op.in, op.bytes());
      ring_gather(op, given_slices(op));
      break;
    case OpKind::kBroadcast: broadcast(op); break;
    default: break;  // a barrier is the entering
  }
  verify(op);
  ++collectives_;
}

// Recursive doubling. Both partners compute (lower block) op (upper block), so all end with the same bits.
void SocketPath::all_reduce_small(const Operation& op) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_))), surplus = size_ - power;
  fold_in(op, surplus, power);
  if (rank_ < power)
    for (int distance = 1; distance < power; distance *= 2) exchange_with(op, rank_ ^ distance);
  if (rank_ < surplus) send_data(rank_ + power, op.out, op.bytes());
  if (rank_ >= power) std::memcpy(op.out, receive_data(op, rank_ - power, op.bytes()).payload(), op.bytes());
}

// The ranks past the largest power of two give their data to a partner below it.
void SocketPath::fold_in(const Operation& op, int surplus, int power) {
  if (rank_ >= power) send_data(rank_ - power, op.in, op.bytes());
  if (rank_ >= surplus) return;
  Frame theirs = receive_data(op, rank_ + power, op.bytes());
  const void* inputs[] = {op.out, theirs.payload()};
  reduce(op.dtype, op.reduce, op.out, inputs, 2, op.count);
}

void SocketPath::exchange_with(const Operation& op, int partner) {
  send_data(partner, op.out, op.bytes());
  Frame theirs = receive_data(op, partner, op.bytes());
  const void* inputs[] = {op.out, theirs.payload()};
  if (partner < rank_) std::swap(inputs[0], inputs[1]);
  reduce(op.dtype, op.reduce, op.out, inputs, 2, op.count);
}

SocketPath::Slices SocketPath::equal_slices(const Operation& op) const {
  const size_t share = (op.count + size_ - 1) / size_;
  Slices slices;
  for (int rank = 0; rank < size_; ++rank) {
    const size_t first = std::min(op.count, rank * share);
    slices.push_back({first, std::min(share, op.count - first)});
  }
  return slices;
}

SocketPath::Slices SocketPath::given_slices(const Operation& op) const {
  Slices slices;
  for (int rank = 0; rank < size_; ++rank) slices.push_back({rank * op.count, op.count});
  return slices;
}

// Slice q starts at rank q + 1 and gathers one rank's data a hop until it is complete at rank q. Sums in flight live in the
// frames; op.in stays as it is until its own slice is complete.
void SocketPath::ring_reduce(const Operation& op, const Slices& slices, std::byte* out) {
  const size_t width = size_of(op.dtype);
  if (size_ == 1) {
    std::memmove(out, op.in, op.bytes());
    return;
  }
  const Slice start = slices[(rank_ + size_ - 1) % size_];
  for_pieces(start.first, start.count, width,
             [&](size_t first, size_t n) { send_data(rank_ + 1, op.in + first * width, n * width); });
  for (int hop = 2; hop <= size_; ++hop) {
    const Slice slice = slices[(rank_ + size_ - hop) % size_];
    for_pieces(slice.first, slice.count, width, [&](size_t first, size_t n) {
      Frame sum = receive_data(op, rank_ - 1, n * width);
      const void* inputs[] = {sum.payload(), op.in + first * width};
      std::byte* to = hop < size_ ? sum.payload() : out + (first - slice.first) * width;
      reduce(op.dtype, op.reduce, to, inputs, 2, n);
      if (hop < size_) link(rank_ + 1).send(std::move(sum));
    });
  }
}

// Every rank holds its own slice of op.out and passes on what it receives.
void SocketPath::ring_gather(const Operation& op, const Slices& slices) {
  if (size_ == 1) return;
  const size_t width = size_of(op.dtype);
  for_pieces(slices[rank_].first, slices[rank_].count, width,
             [&](size_t first, size_t n) { send_data(rank_ + 1, op.out + first * width, n * width); });
  for (int hop = 1; hop < size_; ++hop) {
    const Slice slice = slices[(rank_ + size_ - hop) % size_];
    for_pieces(slice.first, slice.count, width, [&](size_t first, size_t n) {
      Frame piece = receive_data(op, rank_ - 1, n * width);
      std::memcpy(op.out + first * width, piece.payload(), n * width);
      if (hop < size_ - 1) link(rank_ + 1).send(std::move(piece));
    });
  }
}

// Binomial tree over the ranks counted from the root: a rank's parent is itself without its lowest bit.
void SocketPath::broadcast(const Operation& op) {
  const size_t width = size_of(op.dtype);
  const unsigned mine = static_cast<unsigned>((rank_ - op.peer + size_) % size_);
  const unsigned lowest = mine == 0 ? std::bit_ceil(static_cast<unsigned>(size_)) : mine & -mine;
  for_pieces(0, op.count, width, [&](size_t first, size_t n) {
    std::byte* at = op.out + first * width;
    if (mine != 0) {
      const int parent = static_cast<int>(mine - lowest + op.peer) % size_;
      std::memcpy(at, receive_data(op, parent, n * width).payload(), n * width);
    }
    for (unsigned bit = lowest / 2; bit > 0; bit /= 2)
      if (mine + bit < static_cast<unsigned>(size_)) send_data(static_cast<int>(mine + bit) + op.peer, at, n * width);
  });
}

void SocketPath::send_mail(const Operation& op) {
  Link& to = link(op.peer);
  const size_t width = size_of(op.dtype);
  for_pieces(0, op.count, width, [&](size_t first, size_t n) {
    Frame frame(FrameHeader::of(FrameType::kMail, to.mail_sent++, op.signature()), n * width);
    std::memcpy(frame.payload(), op.in + first * width, n * width);
    to.send(std::move(frame));
  });
}

void SocketPath::receive_mail(const Operation& op) {
  const size_t width = size_of(op.dtype);
  for_pieces(0, op.count, width, [&](size_t first, size_t n) {
    std::memcpy(op.out + first * width, next_mail(op, n * width).payload(), n * width);
  });
}

}  // namespace muster::comm::host
