#include "comm/collective/host/operation.h"

#include <array>

namespace muster::comm::host {

using std::string_view;

size_t size_of(DType dtype) {
  static constexpr size_t kSizes[] = {8, 4, 2, 2, 8, 1};
  return kSizes[static_cast<size_t>(dtype)];
}

string_view to_string(DType dtype) {
  static constexpr string_view kNames[] = {"float64", "float32", "bfloat16", "float16", "int64", "uint8"};
  return kNames[static_cast<size_t>(dtype)];
}

string_view to_string(ReduceOp op) {
  static constexpr string_view kNames[] = {"sum", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

static bool reduces(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter; }

std::string to_string(const Signature& s) {
  if (s.kind_ >= static_cast<uint8_t>(OpKind::kCount) || s.reduce > 2 || s.dtype > static_cast<uint8_t>(DType::kUInt8))
    return "an unreadable operation";
  if (s.kind() == OpKind::kBarrier) return "barrier()";
  const std::string data = fmt::format("{} x {}", to_string(static_cast<DType>(s.dtype)), s.count);
  if (s.kind() == OpKind::kBroadcast) return fmt::format("broadcast({}, root {})", data, s.root);
  if (s.kind() == OpKind::kSend) return fmt::format("send/recv({})", data);
  if (!reduces(s.kind())) return fmt::format("{}({})", comm::to_string(s.kind()), data);
  return fmt::format("{}({}, {})", comm::to_string(s.kind()), to_string(static_cast<ReduceOp>(s.reduce)), data);
}

Signature Operation::signature() const {
  Signature s;
  s.kind_ = static_cast<uint8_t>(kind == OpKind::kRecv ? OpKind::kSend : kind);
  s.reduce = reduces(kind) ? static_cast<uint8_t>(reduce) : 0;
  s.dtype = static_cast<uint8_t>(dtype);
  s.root = kind == OpKind::kBroadcast ? peer : -1;
  s.count = static_cast<int64_t>(count);
  return s;
}

PeerError::Context context_of(const Operation& operation, int rank, std::string cause) {
  return {rank, std::string(comm::to_string(operation.kind)), operation.sequence, std::move(cause)};
}

void fail(const Operation& operation, int rank, std::string cause) {
  throw PeerError(context_of(operation, rank, std::move(cause)));
}

void fail_mismatch(const Operation& mine, int self, int peer, const Signature& theirs) {
  fail(mine, peer, fmt::format("mismatch: rank {} called {}, rank {} called {}", peer, to_string(theirs), self,
                               to_string(mine.signature())));
}

}  // namespace muster::comm::host
