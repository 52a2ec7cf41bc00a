#pragma once

#include <string>

#include "comm/rendezvous/environment.h"

namespace muster::launcher {

// What one node's ranks run on.
struct DeviceChoice {
  std::string device;  // "cpu" or "cuda"
  std::string worker;  // path of the program
};

// Resolves device = auto|cpu|cuda for `ranks` ranks on this node: cuda where asked for, or where a GPU is visible and
// muster-worker-cuda is in `folder`. MUSTER_WORKER names another program; MUSTER_NVML_LIBRARY another NVML.
// InputError where cuda was asked for and cannot be had, or where there are more ranks than GPUs.
DeviceChoice choose_device(const std::string& device, int ranks, const std::string& folder, const comm::Environment& environment);

// More CUDA ranks than GPUs: InputError, unless NCCL_MULTI_RANK_GPU_ENABLE=1 lets them share.
void check_gpu_count(int ranks, int gpus, const comm::Environment& environment);

}  // namespace muster::launcher
