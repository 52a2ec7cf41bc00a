#include "comm/collective/host/shared_path.h"

#include <cstring>

#include "comm/collective/host/reduce.h"
#include "comm/collective/host/shared_wait.h"

namespace muster::comm::host {

// Up to this size everybody reduces everything: one wait instead of two.
constexpr size_t kSmallBytes = 16 << 10;

void SharedPath::run(std::span<const Operation> operations) {
  check_notice(operations.front());  // a late rank must not complete what the others have given up
  for (const Operation& operation : operations)
    if (operation.point_to_point()) begin_transfer(operation);
  for (const Operation& operation : operations)
    if (!operation.point_to_point()) collective(operation);
  finish_transfers();
}

void SharedPath::collective(const Operation& operation) {
  switch (operation.kind) {
    case OpKind::kAllReduce: return operation.bytes() <= kSmallBytes ? all_reduce_small(operation) : all_reduce(operation);
    case OpKind::kReduceScatter: return reduce_scatter(operation);
    case OpKind::kAllGather: return all_gather(operation);
    case OpKind::kBroadcast: return broadcast(operation);
    case OpKind::kBarrier: return barrier(operation);
    default: throw CheckError("not a collective");
  }
}

// The steps that all collectives share ---------------------------------------------------------------------------------

SharedPath::Pass SharedPath::make_pass(const Operation& operation, size_t element_bytes) const {
  Pass pass{operation, segment_->slot_bytes() / element_bytes, 1};
  if (operation.count > 0) pass.chunks = (operation.count + pass.step - 1) / pass.step;
  return pass;
}

void SharedPath::publish(std::atomic<uint64_t> RankState::*counter, uint64_t value) {
  (segment_->state(rank_).*counter).store(value, std::memory_order_release);
  segment_->ring_all(rank_);
}

void SharedPath::await_all(const Operation& operation, std::atomic<uint64_t> RankState::*counter, uint64_t value) {
  await(operation, [&](int rank) { return (segment_->state(rank).*counter).load(std::memory_order_acquire) >= value; });
}

void SharedPath::await_free_slot(const Operation& operation, uint64_t i) {
  if (base_ + i >= kSlots) await_all(operation, &RankState::released, base_ + i - kSlots + 1);
}

// Shows the signature; the caller rings.
void SharedPath::enter(const Operation& operation) {
  RankState& mine = segment_->state(rank_);
  mine.signatures[collectives_ % std::size(mine.signatures)] = operation.signature();
  mine.entered.store(collectives_ + 1, std::memory_order_release);
}

// Chunk i of this rank can be read.
void SharedPath::post(const Operation& operation, uint64_t i) {
  if (i == 0) enter(operation);
  publish(&RankState::posted, base_ + i + 1);
  if (i == 0) verify(operation);
}

// All have entered this collective with the same signature. Nobody reads data of a peer, or ends, before that.
void SharedPath::verify(const Operation& operation) {
  const Signature mine = operation.signature();
  await(operation, [&](int rank) {
    const RankState& peer = segment_->state(rank);
    if (peer.entered.load(std::memory_order_acquire) <= collectives_) return false;
    const Signature& theirs = peer.signatures[collectives_ % std::size(peer.signatures)];
    if (theirs != mine) fail_mismatch(operation, rank_, rank, theirs);
    return true;
  });
}

void SharedPath::leave(uint64_t chunks) {
  base_ += chunks;
  ++collectives_;
  RankState& mine = segment_->state(rank_);
  mine.posted.store(base_, std::memory_order_release);
  mine.reduced.store(base_, std::memory_order_release);
  publish(&RankState::released, base_);
}

// All-reduce -------------------------------------------------------------------------------------------------------------

void SharedPath::all_reduce_small(const Operation& op) {
  await_free_slot(op, 0);
  std::memcpy(segment_->slot(rank_, base_), op.in, op.bytes());
  post(op, 0);
  await_all(op, &RankState::posted, base_ + 1);
  for (int rank = 0; rank < size_; ++rank) inputs_[rank] = segment_->slot(rank, base_);
  reduce(op.dtype, op.reduce, op.out, inputs_.data(), size_, op.count);
  leave(1);
}

void SharedPath::all_reduce(const Operation& op) {
  const Pass pass = make_pass(op, size_of(op.dtype));
  for (uint64_t i = 0; i < pass.chunks + 2; ++i) {
    if (i < pass.chunks) all_reduce_stage(pass, i);
    if (i >= 1 && i <= pass.chunks) all_reduce_combine(pass, i - 1);
    if (i >= 2) all_reduce_collect(pass, i - 2);
  }
  leave(pass.chunks);
}

// Whole cache lines, so that two ranks never write to the same one.
SharedPath::Slice SharedPath::slice(const Pass& pass, uint64_t i, int rank) const {
  const size_t line = 64 / size_of(pass.operation.dtype), n = pass.count(i);
  const size_t share = ((n + size_ - 1) / size_ + line - 1) / line * line;
  const size_t first = std::min(n, rank * share);
  return {first, std::min(share, n - first)};
}

// Copies in all but this rank's own slice.
void SharedPath::all_reduce_stage(const Pass& pass, uint64_t i) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  await_free_slot(op, i);
  const Slice own = slice(pass, i, rank_);
  const std::byte* from = op.in + pass.first(i) * width;
  std::byte* to = segment_->slot(rank_, base_ + i);
  const size_t after = own.first + own.count;
  std::memcpy(to, from, own.first * width);
  std::memcpy(to + after * width, from + after * width, (pass.count(i) - after) * width);
  post(op, i);
}

void SharedPath::all_reduce_combine(const Pass& pass, uint64_t i) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  await_all(op, &RankState::posted, base_ + i + 1);
  const Slice own = slice(pass, i, rank_);
  std::byte* mine = op.out + (pass.first(i) + own.first) * width;
  for (int rank = 0; rank < size_; ++rank)
    inputs_[rank] = rank == rank_ ? mine : segment_->slot(rank, base_ + i) + own.first * width;
  std::byte* result = segment_->slot(rank_, base_ + i) + own.first * width;
  reduce(op.dtype, op.reduce, result, inputs_.data(), size_, own.count);
  publish(&RankState::reduced, base_ + i + 1);
  std::memcpy(mine, result, own.count * width);
}

void SharedPath::all_reduce_collect(const Pass& pass, uint64_t i) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  await_all(op, &RankState::reduced, base_ + i + 1);
  std::byte* to = op.out + pass.first(i) * width;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    const Slice theirs = slice(pass, i, rank);
    std::memcpy(to + theirs.first * width, segment_->slot(rank, base_ + i) + theirs.first * width, theirs.count * width);
  }
  publish(&RankState::released, base_ + i + 1);
}

// Reduce-scatter: a slot holds `step` elements for each rank ------------------------------------------------------------------

void SharedPath::reduce_scatter(const Operation& op) {
  const Pass pass = make_pass(op, size_of(op.dtype) * size_);
  for (uint64_t i = 0; i < pass.chunks + 1; ++i) {
    if (i < pass.chunks) reduce_scatter_stage(pass, i);
    if (i >= 1) reduce_scatter_combine(pass, i - 1);
  }
  leave(pass.chunks);
}

void SharedPath::reduce_scatter_stage(const Pass& pass, uint64_t i) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  await_free_slot(op, i);
  std::byte* to = segment_->slot(rank_, base_ + i);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    std::memcpy(to + rank * pass.step * width, op.in + (rank * op.count + pass.first(i)) * width, pass.count(i) * width);
  }
  post(op, i);
}

void SharedPath::reduce_scatter_combine(const Pass& pass, uint64_t i) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  await_all(op, &RankState::posted, base_ + i + 1);
  for (int rank = 0; rank < size_; ++rank) {
    inputs_[rank] = rank == rank_ ? op.in + (rank_ * op.count + pass.first(i)) * width
                                  : segment_->slot(rank, base_ + i) + rank_ * pass.step * width;
  }
  reduce(op.dtype, op.reduce, op.out + pass.first(i) * width, inputs_.data(), size_, pass.count(i));
  publish(&RankState::released, base_ + i + 1);
}

// Data movement -----------------------------------------------------------------------------------------------------------

void SharedPath::all_gather(const Operation& op) {
  const size_t width = size_of(op.dtype);
  const Pass pass = make_pass(op, width);
  for (uint64_t i = 0; i < pass.chunks; ++i) {
    await_free_slot(op, i);
    std::memcpy(segment_->slot(rank_, base_ + i), op.in + pass.first(i) * width, pass.count(i) * width);
    post(op, i);
    await_all(op, &RankState::posted, base_ + i + 1);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      std::memcpy(op.out + (rank * op.count + pass.first(i)) * width, segment_->slot(rank, base_ + i), pass.count(i) * width);
    }
    publish(&RankState::released, base_ + i + 1);
  }
  if (op.bytes() > 0) std::memmove(op.out + rank_ * op.bytes(), op.in, op.bytes());
  leave(pass.chunks);
}

void SharedPath::broadcast(const Operation& op) {
  const Pass pass = make_pass(op, size_of(op.dtype));
  if (op.peer == rank_) {
    broadcast_root(pass);
  } else {
    broadcast_leaf(pass);
  }
  leave(pass.chunks);
}

void SharedPath::broadcast_root(const Pass& pass) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  for (uint64_t i = 0; i < pass.chunks; ++i) {
    await_free_slot(op, i);
    std::memcpy(segment_->slot(rank_, base_ + i), op.in + pass.first(i) * width, pass.count(i) * width);
    segment_->state(rank_).released.store(base_ + i + 1, std::memory_order_relaxed);
    post(op, i);
  }
}

void SharedPath::broadcast_leaf(const Pass& pass) {
  const Operation& op = pass.operation;
  const size_t width = size_of(op.dtype);
  enter(op);
  segment_->ring_all(rank_);
  verify(op);
  RankState& root = segment_->state(op.peer);
  for (uint64_t i = 0; i < pass.chunks; ++i) {
    await(op, [&](int rank) { return rank != op.peer || root.posted.load(std::memory_order_acquire) > base_ + i; });
    std::memcpy(op.out + pass.first(i) * width, segment_->slot(op.peer, base_ + i), pass.count(i) * width);
    publish(&RankState::released, base_ + i + 1);
  }
}

void SharedPath::barrier(const Operation& op) {
  enter(op);
  segment_->ring_all(rank_);
  verify(op);
  leave(1);
}

}  // namespace muster::comm::host
