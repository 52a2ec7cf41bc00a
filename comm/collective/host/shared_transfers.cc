// Point to point over the shared segment: a ring of mail slots for each direction of each pair.

#include <cstring>

#include "comm/collective/host/shared_wait.h"

namespace muster::comm::host {

uint64_t& SharedPath::chunks_of(const Operation& operation) {
  return (operation.kind == OpKind::kSend ? outgoing_ : incoming_)[operation.peer];
}

void SharedPath::begin_transfer(const Operation& operation) {
  uint64_t& stream = chunks_of(operation);
  const size_t mail = segment_->mail_bytes();
  const uint64_t chunks = std::max<uint64_t>(1, (operation.bytes() + mail - 1) / mail);
  transfers_.push_back({operation, stream, stream + chunks, stream});
  stream += chunks;
}

void SharedPath::finish_transfers() {
  while (!transfers_.empty()) {
    pump();
    if (transfers_.empty()) return;
    const Operation first = transfers_.front().operation;
    await(first, [&](int rank) {
      return rank != first.peer || transfers_.empty() || transfers_.front().operation.sequence != first.sequence;
    });
  }
}

// Moves what can be moved now. Messages of one direction keep their order. Returns whether anything moved.
bool SharedPath::pump() {
  bool moved = false;
  for (size_t i = 0; i < transfers_.size(); ++i) {
    const Operation& op = transfers_[i].operation;
    const auto same = [&](const Transfer& t) { return t.operation.kind == op.kind && t.operation.peer == op.peer; };
    const auto here = transfers_.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find_if(transfers_.begin(), here, same) == here) moved |= advance(*here);
  }
  std::erase_if(transfers_, [](const Transfer& t) { return t.finished(); });
  return moved;
}

bool SharedPath::advance(Transfer& transfer) {
  const uint64_t before = transfer.chunk;
  const bool sends = transfer.operation.kind == OpKind::kSend;
  while (!transfer.finished() && (sends ? push_chunk(transfer) : pull_chunk(transfer))) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    segment_->ring(transfer.operation.peer);
  }
  return transfer.chunk != before;
}

bool SharedPath::push_chunk(Transfer& t) {
  const int peer = t.operation.peer;
  Mailbox& box = segment_->mailbox(rank_, peer);
  if (t.chunk >= box.taken.load(std::memory_order_acquire) + kSlots) return false;
  segment_->mail_header(rank_, peer, t.chunk).signature = t.operation.signature();
  const size_t first = (t.chunk - t.first) * segment_->mail_bytes();
  const size_t bytes = std::min(segment_->mail_bytes(), t.operation.bytes() - first);
  std::memcpy(segment_->mail(rank_, peer, t.chunk), t.operation.in + first, bytes);
  box.sent.store(++t.chunk, std::memory_order_release);
  return true;
}

bool SharedPath::pull_chunk(Transfer& t) {
  const int peer = t.operation.peer;
  Mailbox& box = segment_->mailbox(peer, rank_);
  if (box.sent.load(std::memory_order_acquire) <= t.chunk) return false;
  const Signature theirs = segment_->mail_header(peer, rank_, t.chunk).signature;
  if (theirs != t.operation.signature()) fail_mismatch(t.operation, rank_, peer, theirs);
  const size_t first = (t.chunk - t.first) * segment_->mail_bytes();
  const size_t bytes = std::min(segment_->mail_bytes(), t.operation.bytes() - first);
  std::memcpy(t.operation.out + first, segment_->mail(peer, rank_, t.chunk), bytes);
  box.taken.store(++t.chunk, std::memory_order_release);
  return true;
}

}  // namespace muster::comm::host
