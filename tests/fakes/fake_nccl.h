#pragma once
// An NCCL and a GPU that only write down what they were asked.

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collective/nccl/device_api.h"
#include "comm/collective/nccl/nccl_api.h"

namespace muster::comm::nccl {

// Shared by a fake NCCL and a fake device: one line a call, in order.
struct CallLog {
  void add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
  }
  std::vector<std::string> taken() {
    const std::lock_guard lock(mutex);
    return std::exchange(lines, {});
  }
  std::mutex mutex;
  std::vector<std::string> lines;
};

class FakeEvent : public DeviceEvent {
 public:
  explicit FakeEvent(const std::atomic<bool>& all_pass) : all_pass_(all_pass) {}
  bool passed() override { return all_pass_; }

 private:
  const std::atomic<bool>& all_pass_;
};

class FakeDevice : public DeviceApi {
 public:
  FakeDevice(CallLog& log, std::string identity, const std::atomic<bool>& events_pass) : log_(log), identity_(std::move(identity)), events_pass_(events_pass) {}
  std::string identity() override { return identity_; }
  at::Device tensor_device() override { return at::Device(at::kCPU); }
  cudaStream_t communication_stream() override { return nullptr; }
  void communication_follows_current() override { log_.add("communication follows current"); }
  std::shared_ptr<DeviceEvent> record_communication() override {
    log_.add("record");
    return std::make_shared<FakeEvent>(events_pass_);
  }
  void current_follows(DeviceEvent&) override { log_.add("current follows"); }
  void use() override {}

 private:
  CallLog& log_;
  const std::string identity_;
  const std::atomic<bool>& events_pass_;
};

class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(CallLog& log) : log_(log) {}

  // What the next calls answer.
  std::atomic<int> loaded_version{23203};
  std::atomic<ncclResult_t> init_result{ncclSuccess}, call_result{ncclSuccess}, async_error{ncclSuccess}, id_result{ncclSuccess};

  int version() override { return loaded_version; }
  ncclResult_t get_unique_id(ncclUniqueId* id) override {
    id->internal[0] = 42;
    return id_result;
  }
  ncclResult_t comm_init_rank(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) override {
    log_.add("init " + std::to_string(rank) + "/" + std::to_string(size) + " id " + std::to_string(id.internal[0]) + (config->blocking ? " blocking" : ""));
    *comm = reinterpret_cast<ncclComm_t>(this);
    return init_result;
  }
  ncclResult_t comm_async_error(ncclComm_t, ncclResult_t* error) override {
    *error = async_error;
    return ncclSuccess;
  }
  ncclResult_t comm_abort(ncclComm_t) override { return log_.add("abort"), ncclSuccess; }
  ncclResult_t comm_finalize(ncclComm_t) override { return log_.add("finalize"), ncclSuccess; }
  ncclResult_t comm_destroy(ncclComm_t) override { return log_.add("destroy"), ncclSuccess; }
  ncclResult_t all_reduce(const void*, void*, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t, cudaStream_t) override {
    return call("all_reduce", n, type, " op " + std::to_string(op));
  }
  ncclResult_t reduce_scatter(const void*, void*, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t, cudaStream_t) override {
    return call("reduce_scatter", n, type, " op " + std::to_string(op));
  }
  ncclResult_t all_gather(const void*, void*, size_t n, ncclDataType_t type, ncclComm_t, cudaStream_t) override { return call("all_gather", n, type, ""); }
  ncclResult_t broadcast(const void*, void*, size_t n, ncclDataType_t type, int root, ncclComm_t, cudaStream_t) override {
    return call("broadcast", n, type, " root " + std::to_string(root));
  }
  ncclResult_t send(const void*, size_t n, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) override { return call("send", n, type, " to " + std::to_string(peer)); }
  ncclResult_t recv(void*, size_t n, ncclDataType_t type, int peer, ncclComm_t, cudaStream_t) override { return call("recv", n, type, " from " + std::to_string(peer)); }
  ncclResult_t group_start() override { return log_.add("group start"), ncclSuccess; }
  ncclResult_t group_end() override { return log_.add("group end"), call_result.load(); }
  std::string error_text(ncclResult_t error) override { return "fake error " + std::to_string(error); }

 private:
  ncclResult_t call(const std::string& name, size_t n, ncclDataType_t type, const std::string& rest) {
    log_.add(name + " " + std::to_string(n) + " type " + std::to_string(type) + rest);
    return call_result;
  }
  CallLog& log_;
};

}  // namespace muster::comm::nccl
