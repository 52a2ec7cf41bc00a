#pragma once
// How bytes move between ranks, and what an all-reduce is.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/base/deadline.h"
#include "comm/base/error.h"

namespace muster::comm {

enum class ReduceOp { kSum, kMax, kMin };
enum class OpKind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv, kBarrier, kCount };
std::string_view to_string(OpKind kind);

// A collective in flight. Keeps its tensors alive until it is done.
//
// Threads: any. Failure: wait() and synchronize() throw PeerError naming rank, operation, sequence and cause.
class Work {
 public:
  virtual ~Work() = default;
  // GPU: orders the current stream after the operation, does not block the host. CPU: blocks until the operation is done
  // or the communicator's timeout passes.
  virtual void wait() = 0;
  // Blocks the host until the operation is done; PeerError when the deadline passes.
  virtual void synchronize(Deadline deadline) = 0;
  // True when finished, with or without an error. Never blocks.
  virtual bool done() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

// Calls and payload bytes (of this rank's tensor argument) by operation since construction.
struct Counters {
  std::array<int64_t, static_cast<size_t>(OpKind::kCount)> calls{};
  std::array<int64_t, static_cast<size_t>(OpKind::kCount)> bytes{};
};

// A group of ranks that run collectives together.
//
// Threads: one thread issues operations; any thread may call abort() and counters(). The order of issue must be the
// same on all ranks. Ownership: keeps tensors of running operations alive; must not outlive the process's ZeroMQ/CUDA
// context. Blocking: issue never waits for a peer; only Work does. Tensors must be contiguous and of dtype float64,
// float32, bfloat16, float16 or int64 (uint8 also for broadcast, all_gather, send, recv); anything else is a CheckError
// before anything is sent. Determinism: reductions add in rank-fixed order: the same layout twice is bit-equal, and all
// ranks receive the same bits. bfloat16 and float16 are summed in float32 within a hop.
// Failure: after abort() or a PeerError all present and later operations fail with PeerError; make a new communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "nccl", "host", "loopback"

  [[nodiscard]] virtual WorkPtr all_reduce(at::Tensor inout, ReduceOp op = ReduceOp::kSum) = 0;
  // out (n), in (size * n): out = sum over ranks of in[rank * n, (rank + 1) * n). out may be that slice of in.
  [[nodiscard]] virtual WorkPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op = ReduceOp::kSum) = 0;
  // out (size * n), in (n). in may be the slice [rank * n, (rank + 1) * n) of out.
  [[nodiscard]] virtual WorkPtr all_gather(at::Tensor out, at::Tensor in) = 0;
  [[nodiscard]] virtual WorkPtr broadcast(at::Tensor inout, int root) = 0;
  [[nodiscard]] virtual WorkPtr send(at::Tensor tensor, int to) = 0;
  [[nodiscard]] virtual WorkPtr recv(at::Tensor tensor, int from) = 0;
  [[nodiscard]] virtual WorkPtr barrier() = 0;

  // Calls between begin and end are issued together: they cannot wait for each other (a send and a receive that cross,
  // say), and end's Work is done when all are. Prefer Group below.
  virtual void group_begin() = 0;
  [[nodiscard]] virtual WorkPtr group_end() = 0;

  // Ends all operations with PeerError("aborted: why"), here and, where they are connected, on the peers. Idempotent.
  virtual void abort(const std::string& why) = 0;
  virtual Counters counters() const = 0;
};

struct CommunicatorOptions {
  std::string name = "world";                  // appears in errors
  milliseconds timeout{std::chrono::minutes(10)};  // of one operation
};

}  // namespace muster::comm
