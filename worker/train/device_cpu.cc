#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include <ATen/Parallel.h>

#include "comm/base/error.h"
#include "comm/collective/backends.h"
#include "worker/train/device.h"

namespace muster::worker {

at::Device open_device(const RunConfig& config, const comm::Place& place) {
  if (config.device == "cuda") {
    refuse("device: found 'cuda', but this worker is built for the CPU; build with -DMUSTER_CUDA=ON, or use --device cpu");
  }
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = config.threads > 0 ? config.threads : std::max<int64_t>(1, cores / place.local_world_size);
  at::set_num_threads(static_cast<int>(threads));
  return at::Device(at::kCPU);
}

std::unique_ptr<comm::Communicator> open_communicator(const RunConfig& config, at::Device, comm::Rendezvous& rendezvous,
                                                    const std::string& name) {
  if (config.backend == "nccl") refuse("backend: found 'nccl' on the CPU; wanted host or auto");
  comm::CommunicatorOptions options;
  options.name = name;
  options.timeout = milliseconds(static_cast<int64_t>(config.comm_timeout_s * 1000));
  return rendezvous.place().world_size == 1 ? comm::make_loopback_communicator() : comm::make_host_communicator(rendezvous, options);
}

MemoryUse memory_use(at::Device) {
  std::ifstream status("/proc/self/status");
  MemoryUse use;
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) use.now = kib * 1024;
    if (word == "VmHWM:" && status >> kib) use.peak = kib * 1024;
  }
  return use;
}

void synchronize(at::Device) {}

at::Tensor pinned(const at::Tensor& tensor, at::Device) { return tensor; }

}  // namespace muster::worker
