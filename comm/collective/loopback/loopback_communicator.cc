// World size 1, tensors of any device: every operation is done when it is issued.

#include <mutex>
#include <optional>

#include "comm/collective/backends.h"
#include "comm/collective/host/arguments.h"

namespace muster::comm {
namespace {

using host::Operation;

class DoneWork : public Work {
 public:
  explicit DoneWork(std::optional<PeerError::Context> error) : error_(std::move(error)) {}
  void wait() override {
    if (error_) throw PeerError(*error_);
  }
  void synchronize(Deadline) override { wait(); }
  bool done() override { return true; }

 private:
  const std::optional<PeerError::Context> error_;
};

class LoopbackCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view backend() const override { return "loopback"; }

  WorkPtr all_reduce(at::Tensor inout, ReduceOp op) override { return run(host::all_reduce_operation(inout, op)); }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return run(host::reduce_scatter_operation(out, in, op, 1), out, in);
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override { return run(host::all_gather_operation(out, in, 1), out, in); }
  WorkPtr broadcast(at::Tensor inout, int root) override { return run(host::broadcast_operation(inout, root, 1)); }
  // Nobody to send to: the checks of the arguments always throw.
  WorkPtr send(at::Tensor tensor, int to) override { return run(host::send_operation(tensor, to, 0, 1)); }
  WorkPtr recv(at::Tensor tensor, int from) override { return run(host::recv_operation(tensor, from, 0, 1)); }
  WorkPtr barrier() override { return run(Operation{}); }

  void group_begin() override {
    MUSTER_CHECK(!in_group_);
    in_group_ = true;
  }
  WorkPtr group_end() override {
    MUSTER_CHECK(in_group_);
    in_group_ = false;
    std::lock_guard lock(mutex_);
    return std::make_shared<DoneWork>(fault_);
  }

  void abort(const std::string& why) override {
    std::lock_guard lock(mutex_);
    if (!fault_) fault_ = PeerError::Context{-1, "abort", -1, "aborted: " + why};
  }
  Counters counters() const override {
    std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  // out and in: of an operation that copies; on a GPU the copy is in the current stream's order.
  WorkPtr run(Operation operation, at::Tensor out = {}, const at::Tensor& in = {}) {
    std::lock_guard lock(mutex_);
    operation.sequence = sequence_++;
    if (fault_) return std::make_shared<DoneWork>(host::context_of(operation, fault_->rank, fault_->cause));
    host::count_call(counters_, operation, 1);
    if (operation.in != operation.out) out.view({-1}).copy_(in.view({-1}));
    return std::make_shared<DoneWork>(std::nullopt);
  }

  bool in_group_ = false;
  mutable std::mutex mutex_;  // guards all below
  long long sequence_ = 0;
  Counters counters_;
  std::optional<PeerError::Context> fault_;
};

}  // namespace

std::unique_ptr<Communicator> make_loopback_communicator() { return std::make_unique<LoopbackCommunicator>(); }

}  // namespace muster::comm
