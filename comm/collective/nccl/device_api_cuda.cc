#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include "comm/collective/backends.h"
#include "comm/collective/nccl/device_api.h"
#include "comm/collective/nccl/nccl_communicator.h"

namespace muster::comm::nccl {
namespace {

class CudaEvent : public DeviceEvent {
 public:
  bool passed() override { return event.query(); }
  at::cuda::CUDAEvent event{cudaEventDisableTiming};
};

class CudaDeviceApi : public DeviceApi {
 public:
  explicit CudaDeviceApi(int device)
      : device_(static_cast<c10::DeviceIndex>(device)), stream_(c10::cuda::getStreamFromPool(true, device_)) {}

  std::string identity() override {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
    std::string text = "GPU-";
    for (const char byte : properties.uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
  }
  at::Device tensor_device() override { return {at::kCUDA, device_}; }
  cudaStream_t communication_stream() override { return stream_; }
  void communication_follows_current() override {
    const c10::cuda::CUDAGuard guard(device_);
    ready_.record(c10::cuda::getCurrentCUDAStream(device_));
    ready_.block(stream_);
  }
  std::shared_ptr<DeviceEvent> record_communication() override {
    const c10::cuda::CUDAGuard guard(device_);
    auto event = std::make_shared<CudaEvent>();
    event->event.record(stream_);
    return event;
  }
  void current_follows(DeviceEvent& event) override { static_cast<CudaEvent&>(event).event.block(c10::cuda::getCurrentCUDAStream(device_)); }
  void use() override { c10::cuda::set_device(device_); }

 private:
  const c10::DeviceIndex device_;
  const c10::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent ready_{cudaEventDisableTiming};
};

}  // namespace

std::unique_ptr<DeviceApi> make_cuda_device_api(int device) { return std::make_unique<CudaDeviceApi>(device); }

}  // namespace muster::comm::nccl

namespace muster::comm {

std::unique_ptr<Communicator> make_nccl_communicator(Rendezvous& rendezvous, int device, CommunicatorOptions options) {
  return nccl::make_communicator(rendezvous, nccl::process_nccl(), nccl::make_cuda_device_api(device), std::move(options));
}

}  // namespace muster::comm
