#include "comm/topology/devices.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <cstdlib>
#include <sstream>

#include <dlfcn.h>

namespace muster::comm {
namespace {

int nvml_count(const std::string& library) {
  void* nvml = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!nvml) return 0;
  const auto init = reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlInit_v2"));
  const auto count = reinterpret_cast<int (*)(unsigned*)>(::dlsym(nvml, "nvmlDeviceGetCount_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlShutdown"));
  unsigned devices = 0;
  if (init && count && init() == 0) {
    if (count(&devices) != 0) devices = 0;
    if (shutdown) shutdown();
  }
  ::dlclose(nvml);
  return static_cast<int>(devices);
}

// As the driver reads it: entries up to the first that is no device; a repeated one makes the list empty.
int entries(const std::string& list, int devices) {
  std::set<std::string> seen;
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ',');) {
    entry.erase(0, entry.find_first_not_of(' '));
    const bool ordinal = !entry.empty() && std::isdigit(static_cast<unsigned char>(entry[0]));
    if (ordinal && std::atoi(entry.c_str()) >= devices) break;
    if (!ordinal && !entry.starts_with("GPU-") && !entry.starts_with("MIG-")) break;
    if (!seen.insert(entry).second) return 0;
  }
  return static_cast<int>(seen.size());
}

}  // namespace

int visible_gpus(const char* visible_devices, const std::string& nvml_library) {
  const int devices = nvml_count(nvml_library);
  return visible_devices ? std::min(devices, entries(visible_devices, devices)) : devices;
}

}  // namespace muster::comm
