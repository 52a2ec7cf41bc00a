#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/collective/backends.h"
#include "worker/kernels/cuda_register.h"
#include "worker/train/device.h"

namespace muster::worker {
namespace {

// With fewer GPUs than local ranks they share (correctness runs only); the nccl backend refuses what its NCCL cannot do.
int ordinal_of(const comm::Place& place) {
  const int count = c10::cuda::device_count();
  if (count == 0) refuse("device: found no CUDA device, wanted one for local rank {}; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu", place.local_rank);
  return place.local_rank % count;
}

// Runs one small backward pass: the thread in which autograd works on this device gets its CUDA context before cuBLAS asks for
// one there (and warns).
void wake_autograd(at::Device device) {
  at::ones({1}, at::TensorOptions().device(device)).set_requires_grad(true).mul(2.0).sum().backward();
}

}  // namespace

at::Device open_device(const RunConfig& config, const comm::Place& place) {
  if (config.device == "cpu") refuse("device: found 'cpu', but this is the CUDA worker; start muster-worker");
  at::globalContext().lazyInitDevice(at::kCUDA);
  kernels::register_cuda_kernels();
  const int ordinal = ordinal_of(place);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(ordinal));
  at::set_num_threads(1);
  const bool tf32 = config.precision != "fp32" && config.precision != "fp64";
  at::globalContext().setAllowTF32CuBLAS(tf32);
  at::globalContext().setAllowTF32CuDNN(tf32);
  auto generator = at::cuda::detail::getDefaultCUDAGenerator(static_cast<c10::DeviceIndex>(ordinal));
  generator.set_current_seed(static_cast<uint64_t>(config.seed) + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(place.rank + 1));
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(ordinal));
  wake_autograd(device);
  return device;
}

std::unique_ptr<comm::Communicator> open_communicator(const RunConfig& config, at::Device device, comm::Rendezvous& rendezvous,
                                                    const std::string& name) {
  if (config.backend == "host") refuse("backend: found 'host' on the GPU; wanted nccl or auto");
  comm::CommunicatorOptions options;
  options.name = name;
  options.timeout = milliseconds(static_cast<int64_t>(config.comm_timeout_s * 1000));
  return rendezvous.place().world_size == 1 ? comm::make_loopback_communicator()
                                            : comm::make_nccl_communicator(rendezvous, device.index(), options);
}

MemoryUse memory_use(at::Device device) {
  if (!device.is_cuda()) return {};  // tests compare with the CPU in this program
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {bytes.current, bytes.peak};
}

void synchronize(at::Device) { c10::cuda::device_synchronize(); }

at::Tensor pinned(const at::Tensor& tensor, at::Device) { return tensor.pin_memory(); }

}  // namespace muster::worker
