// An NVML whose machine comes from the environment: FAKE_GPUS devices, or those of the file FAKE_NVML, one fact a line:
//   gpu UUID DOMAIN BUS SM NUMA MIG_DEVICES FABRIC_STATE   (numbers of domain and bus hexadecimal; -1: not supported)
//   link GPU LINK gpu|switch|away N VERSION                (N of a switch: its bus)
//   path A B ANCESTOR
//   p2p A B STATE
//   c2c GPU LINKS ACTIVE MEGABYTES

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kOk = 0, kNotSupported = 3;

struct FakeGpu {
  std::string uuid;
  unsigned domain = 0, bus = 0;
  int sm = 0, numa = -1, mig = -1, fabric = -1;
};
struct FakeLink {
  std::string kind;
  unsigned remote = 0, version = 0;
};
struct FakeC2c {
  unsigned links = 0, active = 0, megabytes = 0;
};
struct Machine {
  std::vector<FakeGpu> gpus;
  std::map<std::pair<int, unsigned>, FakeLink> links;
  std::map<std::pair<int, int>, unsigned> paths, p2p;
  std::map<int, FakeC2c> c2c;
};

Machine load() {
  Machine out;
  const char* file = std::getenv("FAKE_NVML");
  std::ifstream in(file ? file : "/dev/null");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    int a = 0, b = 0;
    if (kind == "gpu") {
      FakeGpu gpu;
      words >> gpu.uuid >> std::hex >> gpu.domain >> gpu.bus >> std::dec >> gpu.sm >> gpu.numa >> gpu.mig >> gpu.fabric;
      out.gpus.push_back(gpu);
    } else if (kind == "link") {
      FakeLink link;
      words >> a >> b >> link.kind >> link.remote >> link.version;
      out.links[{a, static_cast<unsigned>(b)}] = link;
    } else if (kind == "c2c") {
      FakeC2c c2c;
      words >> a >> c2c.links >> c2c.active >> c2c.megabytes;
      out.c2c[a] = c2c;
    } else if (kind == "path" || kind == "p2p") {
      unsigned value = 0;
      words >> a >> b >> value;
      (kind == "path" ? out.paths : out.p2p)[{a, b}] = value;
    }
  }
  return out;
}

Machine machine;

// Handles are places in the list, from 1; MIG devices come after them.
int place(void* device) { return static_cast<int>(reinterpret_cast<size_t>(device)) - 1; }
const FakeGpu* gpu_of(void* device) {
  return place(device) < static_cast<int>(machine.gpus.size()) ? &machine.gpus[place(device)] : nullptr;
}

struct FieldValue {
  unsigned field, link;
  long long timestamp, latency;
  int type, error;
  unsigned value, rest;
};

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

int give(unsigned* out, int value) { return value < 0 ? kNotSupported : (*out = static_cast<unsigned>(value), kOk); }

}  // namespace

extern "C" {
int nvmlInit_v2() {
  machine = load();
  return std::getenv("FAKE_GPUS") || std::getenv("FAKE_NVML") ? kOk : 9;
}
int nvmlShutdown() { return kOk; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* number = std::getenv("FAKE_GPUS");
  *count = number ? static_cast<unsigned>(std::atoi(number)) : static_cast<unsigned>(machine.gpus.size());
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= machine.gpus.size() || machine.gpus[index].uuid == "lost") return 15;
  *device = reinterpret_cast<void*>(static_cast<size_t>(index) + 1);
  return kOk;
}
int nvmlDeviceGetUUID(void* device, char* out, unsigned size) {
  const FakeGpu* gpu = gpu_of(device);
  std::snprintf(out, size, "%s", gpu ? gpu->uuid.c_str() : ("MIG-" + std::to_string(place(device))).c_str());
  return kOk;
}
int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  std::snprintf(out, size, "%s", gpu_of(device) ? "Fake GPU" : "Fake MIG 1g");
  return kOk;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* out) {
  out->domain = gpu_of(device)->domain;
  out->bus = gpu_of(device)->bus;
  out->device = 0;
  return kOk;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = gpu_of(device)->sm / 10;
  *minor = gpu_of(device)->sm % 10;
  return kOk;
}
int nvmlDeviceGetCpuAffinity(void* device, unsigned size, unsigned long* out) {
  std::memset(out, 0, size * sizeof(*out));
  const int numa = gpu_of(device)->numa;
  if (numa < 0) return kNotSupported;
  out[numa] = 0xff;  // 64 CPUs a node, of which the job has 8
  return kOk;
}
int nvmlDeviceGetMemoryAffinity(void* device, unsigned size, unsigned long* out, unsigned) {
  std::memset(out, 0, size * sizeof(*out));
  const int numa = gpu_of(device)->numa;
  if (numa < 0) return kNotSupported;
  out[0] = 1ul << numa;
  return kOk;
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return give(current, gpu_of(device)->mig < 0 ? -1 : gpu_of(device)->mig > 0);
}
int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* out) { return *out = 7, kOk; }
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** out) {
  if (static_cast<int>(index) >= gpu_of(device)->mig) return 6;
  *out = reinterpret_cast<void*>(100 + static_cast<size_t>(index));
  return kOk;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* out) {
  if (!machine.links.contains({place(device), link})) return kNotSupported;
  return *out = machine.links[{place(device), link}].kind != "down", kOk;
}
int nvmlDeviceGetNvLinkVersion(void* device, unsigned link, unsigned* out) {
  return *out = machine.links[{place(device), link}].version, kOk;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, PciInfo* out) {
  const FakeLink& far = machine.links[{place(device), link}];
  out->device = 0;
  out->domain = far.kind == "gpu" ? machine.gpus[far.remote].domain : 0;
  out->bus = far.kind == "gpu" ? machine.gpus[far.remote].bus : far.remote;
  return kOk;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, unsigned* out) {
  const std::string& kind = machine.links[{place(device), link}].kind;
  return *out = kind == "gpu" ? 0 : kind == "switch" ? 2 : 0xff, kOk;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, unsigned* out) {
  const auto at = machine.paths.find({place(a), place(b)});
  return at == machine.paths.end() ? kNotSupported : (*out = at->second, kOk);
}
int nvmlDeviceGetP2PStatus(void* a, void* b, unsigned, unsigned* out) {
  const auto at = machine.p2p.find({place(a), place(b)});
  return at == machine.p2p.end() ? kNotSupported : (*out = at->second, kOk);
}
int nvmlDeviceGetFieldValues(void* device, int count, FieldValue* values) {
  const auto at = machine.c2c.find(place(device));
  if (at == machine.c2c.end()) return kNotSupported;
  for (int i = 0; i < count; ++i) {
    const unsigned field = values[i].field;
    values[i].error = kOk;
    values[i].value = field == 170 ? at->second.links : field == 171 ? values[i].link < at->second.active : at->second.megabytes;
  }
  return kOk;
}
int nvmlDeviceGetGpuFabricInfo(void* device, unsigned char* out) {
  if (gpu_of(device)->fabric < 0) return kNotSupported;
  std::memset(out, 0, 28);
  const unsigned clique = 5;
  std::memcpy(out + 20, &clique, sizeof clique);
  out[24] = static_cast<unsigned char>(gpu_of(device)->fabric);
  return kOk;
}
}
