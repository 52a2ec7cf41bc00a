// An NVML with FAKE_GPUS devices.

#include <cstdlib>

extern "C" {
int nvmlInit_v2() { return std::getenv("FAKE_GPUS") ? 0 : 9; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(std::atoi(std::getenv("FAKE_GPUS")));
  return 0;
}
}
