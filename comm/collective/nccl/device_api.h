#pragma once
// What the nccl communicator needs of the GPU, behind one class, so that it is tested without one.

#include <memory>
#include <string>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace muster::comm::nccl {

// A point in the communication stream. Threads: any.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual bool passed() = 0;  // never blocks
};

// Threads: the issuing thread, except where said. Ownership: holds the communication stream.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;
  // Names this GPU the same in every process of this machine: its UUID.
  virtual std::string identity() = 0;
  virtual at::Device tensor_device() = 0;
  virtual cudaStream_t communication_stream() = 0;
  // The communication stream goes on only after what the current stream has been given.
  virtual void communication_follows_current() = 0;
  virtual std::shared_ptr<DeviceEvent> record_communication() = 0;
  // The current stream goes on only after the event. Does not block the host.
  virtual void current_follows(DeviceEvent& event) = 0;
  // Makes this GPU the calling thread's. Any thread.
  virtual void use() = 0;
};

// A high-priority stream of LibTorch's pool on CUDA ordinal `device`.
std::unique_ptr<DeviceApi> make_cuda_device_api(int device);

}  // namespace muster::comm::nccl
