#include "launcher/device_choice.h"

#include <unistd.h>

#include "comm/base/error.h"
#include "comm/topology/devices.h"

namespace muster::launcher {
namespace {

std::string value(const comm::Environment& environment, const std::string& name, const std::string& otherwise = "") {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? otherwise : found->second;
}

bool runnable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::string worker_path(const std::string& device, const std::string& folder, const comm::Environment& environment) {
  const std::string path =
      value(environment, "MUSTER_WORKER", folder + (device == "cuda" ? "/muster-worker-cuda" : "/muster-worker"));
  if (runnable(path)) return path;
  if (device == "cuda" && !value(environment, "MUSTER_WORKER").empty())
    refuse("MUSTER_WORKER: {} is not an executable file", path);
  if (device == "cuda")
    refuse("device: found cuda, but this build has no {}; build with a CUDA toolkit, or use --device cpu", path);
  refuse("{}: not an executable file; build muster-worker, or set MUSTER_WORKER", path);
}

int gpus_of(const comm::Environment& environment) {
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  return comm::visible_gpus(visible == environment.end() ? nullptr : visible->second.c_str(),
                            value(environment, "MUSTER_NVML_LIBRARY", "libnvidia-ml.so.1"));
}

}  // namespace

void check_gpu_count(int ranks, int gpus, const comm::Environment& environment) {
  if (gpus == 0) refuse("device: found cuda, but no GPU is visible on this node (NVML, CUDA_VISIBLE_DEVICES); use --device cpu");
  if (ranks <= gpus || value(environment, "NCCL_MULTI_RANK_GPU_ENABLE") == "1") return;
  refuse(
      "device: found {} cuda ranks on this node, wanted at most its {} visible GPU{}; use -n {}, --device cpu, or "
      "NCCL_MULTI_RANK_GPU_ENABLE=1 with a NCCL that lets ranks share a GPU",
      ranks, gpus, gpus == 1 ? "" : "s", gpus);
}

DeviceChoice choose_device(const std::string& device, int ranks, const std::string& folder,
                           const comm::Environment& environment) {
  DeviceChoice choice{device, ""};
  if (device != "cpu") {
    const int gpus = gpus_of(environment);
    if (device == "auto") choice.device = gpus > 0 && runnable(folder + "/muster-worker-cuda") ? "cuda" : "cpu";
    if (choice.device == "cuda") check_gpu_count(ranks, gpus, environment);
  }
  choice.worker = worker_path(choice.device, folder, environment);
  return choice;
}

}  // namespace muster::launcher
