#pragma once
// One operation as the data paths see it: raw memory and a signature that all ranks must share. No LibTorch below this line.

#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/collective/communicator.h"

namespace muster::comm::host {

enum class DType : uint8_t { kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kUInt8 };
size_t size_of(DType dtype);
std::string_view to_string(DType dtype);
std::string_view to_string(ReduceOp op);

// What ranks must agree on before they touch each other's bytes. Travels as it is; all ranks are of one architecture.
struct Signature {
  OpKind kind() const { return static_cast<OpKind>(kind_); }
  uint8_t kind_ = 0;
  uint8_t reduce = 0;
  uint8_t dtype = 0;
  uint8_t spare = 0;
  int32_t root = -1;   // broadcast only
  int64_t count = 0;   // elements of one rank's share: inout, out of a reduce_scatter, in of an all_gather
  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 16);
// "all_reduce(sum, float32 x 100)". Takes any bytes.
std::string to_string(const Signature& signature);

struct Operation {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  DType dtype = DType::kUInt8;
  int peer = -1;             // root, receiver or sender
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // may be `in`
  size_t count = 0;          // as in Signature
  long long sequence = 0;    // of issue on this rank's communicator

  size_t bytes() const { return count * size_of(dtype); }
  bool point_to_point() const { return kind == OpKind::kSend || kind == OpKind::kRecv; }
  // A send and its receive have the same signature.
  Signature signature() const;
};

// The error of an operation that a peer (or -1) is to blame for.
PeerError::Context context_of(const Operation& operation, int rank, std::string cause);
[[noreturn]] void fail(const Operation& operation, int rank, std::string cause);
[[noreturn]] void fail_mismatch(const Operation& mine, int self, int peer, const Signature& theirs);

}  // namespace muster::comm::host
