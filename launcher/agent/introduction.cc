#include "launcher/agent/introduction.h"

#include <cstdlib>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <nlohmann/json.hpp>

#include "comm/base/error.h"
#include "comm/base/subprocess.h"

namespace muster::launcher {
namespace {

constexpr int kVersion = 1;

bool is_bridge(const std::string& name) {
  return name.starts_with("docker") || name.starts_with("br-") || name.starts_with("veth") || name.starts_with("virbr");
}

std::string address_of(const ifaddrs& entry) {
  if (!entry.ifa_addr || entry.ifa_addr->sa_family != AF_INET || !(entry.ifa_flags & IFF_UP) || (entry.ifa_flags & IFF_LOOPBACK))
    return "";
  if (is_bridge(entry.ifa_name)) return "";
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr, text, sizeof text);
  return text;
}

}  // namespace

std::string to_text(const Introduction& i) {
  return nlohmann::json{{"version", kVersion}, {"host", i.host}, {"error", i.error},          {"address", i.address},
                        {"port", i.port},      {"key", i.key},   {"run_folder", i.run_folder}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Introduction introduction_from(const std::string& text, int rank) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version") != kVersion) throw PeerError({rank, "exchange", 0, "its muster-agent is of another version"});
    return {json.at("host"), json.at("error"), json.at("address"), json.at("port"), json.at("key"), json.at("run_folder")};
  } catch (const nlohmann::json::exception&) {
    throw PeerError({rank, "exchange", 0, "sent no introduction; is its muster-agent of the same version?"});
  }
}

std::string own_address() {
  if (const char* given = std::getenv("MUSTER_MASTER_ADDR"); given && *given) return given;
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* entry = all; entry && found.empty(); entry = entry->ifa_next) found = address_of(*entry);
    freeifaddrs(all);
  }
  return found.empty() ? host_name() : found;
}

}  // namespace muster::launcher
