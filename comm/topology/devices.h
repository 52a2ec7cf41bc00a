#pragma once

#include <string>

namespace muster::comm {

// GPUs that a process of this environment may use: NVML's count (the driver's library, loaded at run time), cut by
// CUDA_VISIBLE_DEVICES where `visible_devices` is not null. 0 where there is no driver. Costs milliseconds; no CUDA context.
int visible_gpus(const char* visible_devices, const std::string& nvml_library = "libnvidia-ml.so.1");

}  // namespace muster::comm
