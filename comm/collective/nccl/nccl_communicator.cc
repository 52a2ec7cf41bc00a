#include "comm/collective/nccl/nccl_communicator.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/ops/zeros.h>

#include "comm/base/log.h"
#include "comm/collective/host/arguments.h"
#include "comm/collective/nccl/sharing.h"

namespace muster::comm::nccl {
namespace {

using host::DType;
using host::Operation;

constexpr milliseconds kPoll{1};
constexpr milliseconds kWatch{50};

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return ncclFloat64;
    case DType::kFloat32: return ncclFloat32;
    case DType::kBFloat16: return ncclBfloat16;
    case DType::kFloat16: return ncclFloat16;
    case DType::kInt64: return ncclInt64;
    default: return ncclUint8;
  }
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin; }

// One issued operation or group, shared by its works, the pending list and the watchdog.
struct Flight {
  Operation operation;                 // the first, for messages
  std::vector<at::Tensor> tensors;     // alive until the event has passed
  std::shared_ptr<DeviceEvent> event;  // null until issued (within a group)
  Deadline deadline;
};
using FlightPtr = std::shared_ptr<Flight>;

// What outlives the communicator: works may be asked after it.
struct Core {
  Core(NcclApi& nccl, std::unique_ptr<DeviceApi> gpu) : api(nccl), device(std::move(gpu)) {}
  NcclApi& api;
  const std::unique_ptr<DeviceApi> device;
  std::mutex mutex;  // guards all below, and every NCCL call on `comm`
  ncclComm_t comm = nullptr;
  std::optional<PeerError::Context> fault;
  std::deque<FlightPtr> pending;
  bool closing = false;
  std::condition_variable wake;

  // The mutex is held. Ends the communicator; the first cause stays.
  void fail(const Operation& operation, const std::string& cause) {
    if (fault) return;
    fault = host::context_of(operation, -1, cause);
    if (comm) {
      const ncclResult_t result = api.comm_abort(comm);
      if (result != ncclSuccess) log_warn("nccl: abort: {}", api.error_text(result));
      comm = nullptr;
    }
  }
};

class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<Core> core, FlightPtr flight) : core_(std::move(core)), flight_(std::move(flight)) {}

  void wait() override {
    throw_fault();
    MUSTER_CHECK(flight_->event != nullptr);  // within a group: wait after its end
    core_->device->current_follows(*flight_->event);
  }

  void synchronize(Deadline deadline) override {
    MUSTER_CHECK(flight_->event != nullptr);
    while (!flight_->event->passed()) {
      throw_fault();
      if (deadline.expired()) throw PeerError(host::context_of(flight_->operation, -1, "not done in time; a rank did not reach it or is stuck"));
      std::this_thread::sleep_for(kPoll);
    }
    throw_fault();
  }

  bool done() override {
    {
      const std::lock_guard lock(core_->mutex);
      if (core_->fault) return true;
    }
    return flight_->event && flight_->event->passed();
  }

 private:
  void throw_fault() {
    const std::lock_guard lock(core_->mutex);
    if (core_->fault) throw PeerError(host::context_of(flight_->operation, core_->fault->rank, core_->fault->cause));
  }

  const std::shared_ptr<Core> core_;
  const FlightPtr flight_;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Core> core, const Place& place, CommunicatorOptions options)
      : core_(std::move(core)), rank_(place.rank), size_(place.world_size), options_(std::move(options)), watchdog_([this] { watch(); }) {}

  ~NcclCommunicator() override {
    {
      const std::lock_guard lock(core_->mutex);
      core_->closing = true;
    }
    core_->wake.notify_all();
    watchdog_.join();
    close();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "nccl"; }

  WorkPtr all_reduce(at::Tensor inout, ReduceOp op) override {
    const Operation o = host::all_reduce_operation(inout, op);
    return issue(o, {inout}, [=, this](cudaStream_t s) { return api().all_reduce(o.in, o.out, o.count, nccl_type(o.dtype), nccl_op(op), core_->comm, s); });
  }
  WorkPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    const Operation o = host::reduce_scatter_operation(out, in, op, size_);
    return issue(o, {out, in}, [=, this](cudaStream_t s) { return api().reduce_scatter(o.in, o.out, o.count, nccl_type(o.dtype), nccl_op(op), core_->comm, s); });
  }
  WorkPtr all_gather(at::Tensor out, at::Tensor in) override {
    const Operation o = host::all_gather_operation(out, in, size_);
    return issue(o, {out, in}, [=, this](cudaStream_t s) { return api().all_gather(o.in, o.out, o.count, nccl_type(o.dtype), core_->comm, s); });
  }
  WorkPtr broadcast(at::Tensor inout, int root) override {
    const Operation o = host::broadcast_operation(inout, root, size_);
    return issue(o, {inout}, [=, this](cudaStream_t s) { return api().broadcast(o.in, o.out, o.count, nccl_type(o.dtype), root, core_->comm, s); });
  }
  WorkPtr send(at::Tensor tensor, int to) override {
    const Operation o = host::send_operation(tensor, to, rank_, size_);
    return issue(o, {tensor}, [=, this](cudaStream_t s) { return api().send(o.in, o.count, nccl_type(o.dtype), to, core_->comm, s); });
  }
  WorkPtr recv(at::Tensor tensor, int from) override {
    const Operation o = host::recv_operation(tensor, from, rank_, size_);
    return issue(o, {tensor}, [=, this](cudaStream_t s) { return api().recv(o.out, o.count, nccl_type(o.dtype), from, core_->comm, s); });
  }
  WorkPtr barrier() override {
    if (!barrier_.defined()) barrier_ = barrier_tensor();
    Operation o = host::all_reduce_operation(barrier_, ReduceOp::kSum);
    o.kind = OpKind::kBarrier;
    return issue(o, {barrier_}, [=, this](cudaStream_t s) { return api().all_reduce(o.in, o.out, o.count, nccl_type(o.dtype), ncclSum, core_->comm, s); });
  }

  void group_begin() override {
    MUSTER_CHECK(group_ == nullptr);
    group_ = new_flight({});
  }
  WorkPtr group_end() override {
    MUSTER_CHECK(group_ != nullptr);
    const FlightPtr flight = std::exchange(group_, nullptr);
    const auto calls = std::exchange(group_calls_, {});
    return launch(flight, [this, calls](cudaStream_t s) {
      ncclResult_t result = api().group_start();
      for (const auto& call : calls) {
        if (result == ncclSuccess || result == ncclInProgress) result = call(s);
      }
      const ncclResult_t end = api().group_end();
      return result == ncclSuccess || result == ncclInProgress ? end : result;
    });
  }

  void abort(const std::string& why) override {
    const std::lock_guard lock(core_->mutex);
    core_->fail(Operation{}, "aborted: " + why);
  }
  Counters counters() const override {
    const std::lock_guard lock(core_->mutex);
    return counters_;
  }

 private:
  using Call = std::function<ncclResult_t(cudaStream_t)>;

  NcclApi& api() { return core_->api; }

  FlightPtr new_flight(const Operation& operation) {
    return std::make_shared<Flight>(Flight{operation, {}, nullptr, Deadline::after(options_.timeout)});
  }

  at::Tensor barrier_tensor() const { return at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(core_->device->tensor_device())); }

  WorkPtr issue(Operation operation, std::vector<at::Tensor> tensors, Call call) {
    operation.sequence = sequence_++;
    {
      const std::lock_guard lock(core_->mutex);
      host::count_call(counters_, operation, size_);
    }
    const FlightPtr flight = group_ ? group_ : new_flight(operation);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(flight->tensors));
    if (!group_) return launch(flight, call);
    if (group_calls_.empty()) flight->operation = operation;
    group_calls_.push_back(std::move(call));
    return std::make_shared<NcclWork>(core_, flight);
  }

  WorkPtr launch(const FlightPtr& flight, const Call& call) {
    core_->device->communication_follows_current();
    std::unique_lock lock(core_->mutex);
    throw_fault(flight->operation);
    settle(lock, flight->operation, call(core_->device->communication_stream()), flight->deadline);
    flight->event = core_->device->record_communication();
    core_->pending.push_back(flight);
    return std::make_shared<NcclWork>(core_, flight);
  }

  // The mutex is held.
  void throw_fault(const Operation& operation) {
    if (core_->fault) throw PeerError(host::context_of(operation, core_->fault->rank, core_->fault->cause));
  }

  // A communicator that does not block may still be busy with the call (it connects at the first one). The mutex is free between
  // looks, so that abort() gets through.
  void settle(std::unique_lock<std::mutex>& lock, const Operation& operation, ncclResult_t result, Deadline deadline) {
    while (result == ncclInProgress && !deadline.expired()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
      throw_fault(operation);
      if (api().comm_async_error(core_->comm, &result) != ncclSuccess) break;
    }
    if (result == ncclSuccess) return;
    const std::string cause = result == ncclInProgress ? "NCCL did not take the operation in time" : "NCCL: " + api().error_text(result);
    core_->fail(operation, cause);
    throw PeerError(*core_->fault);
  }

  // Lets go of tensors whose operation is done; turns errors and overdue operations into a fault.
  void watch() {
    core_->device->use();
    std::unique_lock lock(core_->mutex);
    while (!core_->closing) {
      core_->wake.wait_for(lock, kWatch);
      while (!core_->pending.empty() && core_->pending.front()->event->passed()) core_->pending.pop_front();
      if (core_->fault || core_->pending.empty()) continue;
      const Flight& oldest = *core_->pending.front();
      ncclResult_t error = ncclSuccess;
      if (api().comm_async_error(core_->comm, &error) != ncclSuccess || (error != ncclSuccess && error != ncclInProgress)) {
        core_->fail(oldest.operation, "NCCL: " + api().error_text(error));
      } else if (oldest.deadline.expired()) {
        core_->fail(oldest.operation, fmt::format("not done within {} s; a rank did not reach it or is stuck",
                                                  std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count()));
      }
    }
  }

  // Finishes what was issued, within 10 seconds, then frees the communicator.
  void close() {
    const std::lock_guard lock(core_->mutex);
    if (!core_->comm) return;
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    ncclResult_t result = api().comm_finalize(core_->comm);
    while (result == ncclInProgress && !deadline.expired()) {
      std::this_thread::sleep_for(kPoll);
      if (api().comm_async_error(core_->comm, &result) != ncclSuccess) break;
    }
    result = result == ncclSuccess ? api().comm_destroy(core_->comm) : api().comm_abort(core_->comm);
    if (result != ncclSuccess) log_warn("nccl: closing: {}", api().error_text(result));
    core_->comm = nullptr;
  }

  const std::shared_ptr<Core> core_;
  const int rank_, size_;
  const CommunicatorOptions options_;
  long long sequence_ = 0;
  FlightPtr group_;
  std::vector<Call> group_calls_;
  at::Tensor barrier_;
  Counters counters_;      // guarded by core_->mutex
  std::thread watchdog_;   // last: starts when all else is there
};

// Asks NCCL for a communicator that does not block, and waits for it with a deadline.
ncclComm_t connect(NcclApi& api, const ncclUniqueId& id, const Place& place, const CommunicatorOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const Deadline deadline = Deadline::after(options.timeout);
  ncclResult_t result = api.comm_init_rank(&comm, place.world_size, id, place.rank, &config);
  while (result == ncclInProgress && !deadline.expired()) {
    std::this_thread::sleep_for(kPoll);
    if (api.comm_async_error(comm, &result) != ncclSuccess) break;
  }
  if (result == ncclSuccess) return comm;
  if (comm && api.comm_abort(comm) != ncclSuccess) log_warn("nccl: could not abort the failed start");
  const std::string cause = result == ncclInProgress ? "not all ranks reached the start in time" : api.error_text(result);
  throw PeerError({-1, fmt::format("nccl start of '{}'", options.name), 0, cause + "; NCCL_DEBUG=WARN says more"});
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(Rendezvous& rendezvous, NcclApi& api, std::unique_ptr<DeviceApi> device, CommunicatorOptions options) {
  const Place& place = rendezvous.place();
  const Deadline deadline = Deadline::after(options.timeout);
  const char* sharing = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  check_sharing(rendezvous.exchange(device->identity(), deadline), api.version(), sharing && std::strcmp(sharing, "1") == 0);
  ncclUniqueId id{};
  std::string mine;
  if (place.rank == 0) {
    const ncclResult_t result = api.get_unique_id(&id);
    if (result == ncclSuccess) mine.assign(id.internal, sizeof id.internal);
  }
  const std::string given = rendezvous.exchange(mine, deadline)[0];
  if (given.size() != sizeof id.internal) throw PeerError({0, fmt::format("nccl start of '{}'", options.name), 0, "rank 0 got no unique id from NCCL"});
  std::memcpy(id.internal, given.data(), sizeof id.internal);
  device->use();
  auto core = std::make_shared<Core>(api, std::move(device));
  core->comm = connect(api, id, place, options);
  return std::make_unique<NcclCommunicator>(std::move(core), place, std::move(options));
}

}  // namespace muster::comm::nccl
