#pragma once
// Where a rank computes. device_cpu.cc and device_cuda.cc define these, one for each worker program.

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "comm/collective/communicator.h"
#include "comm/rendezvous/rendezvous.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// Chooses the device for this rank, sets threads, math modes (tf32) and generator seeds for it. InputError where it is not to
// be had.
at::Device open_device(const RunConfig& config, const comm::Place& place);

// The communicator of the rendezvous's ranks for tensors on `device`. name: in errors.
std::unique_ptr<comm::Communicator> open_communicator(const RunConfig& config, at::Device device, comm::Rendezvous& rendezvous,
                                                    const std::string& name = "world");

// Bytes that this process holds on the device now, and at most so far: of LibTorch's allocator on a GPU, resident memory of the
// process on the CPU.
struct MemoryUse {
  int64_t now = 0, peak = 0;
};
MemoryUse memory_use(at::Device device);

// Blocks until the device has done what was issued.
void synchronize(at::Device device);

// Page-locked copy for an asynchronous transfer where the device wants that, else the tensor itself.
at::Tensor pinned(const at::Tensor& tensor, at::Device device);

}  // namespace muster::worker
