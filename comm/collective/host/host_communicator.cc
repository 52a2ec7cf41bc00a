#include "comm/base/log.h"
#include "comm/collective/backends.h"
#include "comm/collective/host/arguments.h"
#include "comm/collective/host/connect.h"
#include "comm/collective/host/executor.h"

namespace muster::comm {
namespace {

using host::Executor;
using host::Operation;
using host::Session;
using host::Task;
using host::TaskPtr;

// Shared by a communicator and its works, so that a work may be asked after the communicator is gone.
using ExecutorPtr = std::shared_ptr<Executor>;

class HostWork : public Work {
 public:
  HostWork(std::weak_ptr<Executor> executor, TaskPtr task, milliseconds timeout)
      : executor_(std::move(executor)), task_(std::move(task)), timeout_(timeout) {}

  void wait() override { synchronize(Deadline::after(timeout_)); }

  void synchronize(Deadline deadline) override {
    if (const ExecutorPtr executor = executor_.lock()) return executor->wait(*task_, deadline);
    if (task_->error) throw PeerError(*task_->error);  // the executor's end finished every task
  }

  bool done() override { return task_->done.load(std::memory_order_acquire); }

 private:
  const std::weak_ptr<Executor> executor_;
  const TaskPtr task_;
  const milliseconds timeout_;
};

class HostCommunicator : public Communicator {
 public:
  HostCommunicator(std::shared_ptr<Session> session, std::unique_ptr<host::DataPath> path)
      : session_(session), executor_(std::make_shared<Executor>(session, std::move(path))) {}

  int rank() const override { return session_->rank; }
  int size() const override { return session_->size; }
  std::string_view backend() const override { return "host"; }

  WorkPtr all_reduce(at::Tensor inout, ReduceOp op) override {
    return issue(host::all_reduce_operation(inout, op), {inout});
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return issue(host::reduce_scatter_operation(out, in, op, size()), {out, in});
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    return issue(host::all_gather_operation(out, in, size()), {out, in});
  }
  WorkPtr broadcast(at::Tensor inout, int root) override {
    return issue(host::broadcast_operation(inout, root, size()), {inout});
  }
  WorkPtr send(at::Tensor tensor, int to) override {
    return issue(host::send_operation(tensor, to, rank(), size()), {tensor});
  }
  WorkPtr recv(at::Tensor tensor, int from) override {
    return issue(host::recv_operation(tensor, from, rank(), size()), {tensor});
  }
  WorkPtr barrier() override { return issue(Operation{}, {}); }

  void group_begin() override {
    MUSTER_CHECK(group_ == nullptr);
    group_ = std::make_shared<Task>();
  }

  WorkPtr group_end() override {
    MUSTER_CHECK(group_ != nullptr);
    const TaskPtr task = std::exchange(group_, nullptr);
    if (task->operations.empty()) {
      task->done = true;
    } else {
      executor_->submit(task);
    }
    return work_of(task);
  }

  void abort(const std::string& why) override { executor_->abort({-1, "abort", -1, "aborted: " + why}); }

  Counters counters() const override {
    std::lock_guard lock(counters_mutex_);
    return counters_;
  }

 private:
  WorkPtr issue(Operation operation, std::vector<at::Tensor> tensors) {
    for (const at::Tensor& tensor : tensors) host::require_cpu(tensor);
    operation.sequence = sequence_++;
    count(operation);
    const TaskPtr task = group_ ? group_ : std::make_shared<Task>();
    task->operations.push_back(operation);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(task->tensors));
    if (!group_) executor_->submit(task);
    return work_of(task);
  }

  WorkPtr work_of(const TaskPtr& task) const { return std::make_shared<HostWork>(executor_, task, session_->timeout); }

  void count(const Operation& operation) {
    std::lock_guard lock(counters_mutex_);
    host::count_call(counters_, operation, size());
  }

  const std::shared_ptr<Session> session_;
  const ExecutorPtr executor_;
  TaskPtr group_;  // open group, or null
  long long sequence_ = 0;
  mutable std::mutex counters_mutex_;
  Counters counters_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(Rendezvous& rendezvous, CommunicatorOptions options) {
  auto session = std::make_shared<Session>();
  session->name = options.name;
  session->timeout = options.timeout;
  session->rank = rendezvous.place().rank;
  session->size = rendezvous.place().world_size;
  auto path = host::connect(rendezvous, session);
  return std::make_unique<HostCommunicator>(session, std::move(path));
}

}  // namespace muster::comm
