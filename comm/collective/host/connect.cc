#include "comm/collective/host/connect.h"

#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "comm/base/log.h"
#include "comm/collective/host/shared_path.h"
#include "comm/collective/host/socket_path.h"

namespace muster::comm::host {
namespace {

using Json = nlohmann::json;

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : otherwise;
}

// Names the running kernel: equal on two ranks exactly when they share a machine.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// One exchange of small JSON objects.
std::vector<Json> exchange(Rendezvous& rendezvous, const Session& session, const Json& mine) {
  std::vector<Json> all;
  for (const std::string& text : rendezvous.exchange(mine.dump(), Deadline::after(session.timeout))) {
    Json value = Json::parse(text, nullptr, false);
    if (!value.is_object())
      throw PeerError({static_cast<int>(all.size()), "connect", -1, "sent no JSON object; is it the same version?"});
    all.push_back(std::move(value));
  }
  return all;
}

template <typename T>
T field(const Json& from, int rank, const char* key) {
  try {
    return from.at(key).get<T>();
  } catch (const Json::exception& error) {
    throw PeerError({rank, "connect", -1, fmt::format("field '{}': {}", key, error.what())});
  }
}

Json introduction(const Rendezvous& rendezvous) {
  return {{"node", rendezvous.place().node}, {"boot", boot_id()}, {"pid", static_cast<int>(getpid())},
          {"transport", environment("MUSTER_HOST_TRANSPORT", "auto")}};
}

void check_transport(const std::vector<Json>& all) {
  const auto wanted = field<std::string>(all[0], 0, "transport");
  static constexpr std::string_view kKnown[] = {"auto", "shm", "ipc", "tcp", "inproc"};
  if (std::find(std::begin(kKnown), std::end(kKnown), wanted) == std::end(kKnown))
    refuse("MUSTER_HOST_TRANSPORT: found '{}', wanted shm, ipc, tcp, inproc or auto", wanted);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto theirs = field<std::string>(all[rank], static_cast<int>(rank), "transport");
    if (theirs != wanted)
      refuse("MUSTER_HOST_TRANSPORT: '{}' on rank 0, '{}' on rank {}; set it alike on all ranks", wanted, theirs, rank);
  }
}

bool all_equal(const std::vector<Json>& all, const char* key) {
  return std::all_of(all.begin(), all.end(), [&](const Json& one) { return one.contains(key) && one[key] == all[0][key]; });
}

// Rank 0 makes the segment and says where; empty where it could not.
std::unique_ptr<SharedSegment> create_segment(const Session& session, Json& mine) {
  try {
    auto segment = SharedSegment::create(session.size);
    const auto& address = segment->address();
    mine = {{"pid", address.pid}, {"fd", address.fd}, {"cookie", address.cookie}, {"bytes", address.bytes}};
    return segment;
  } catch (const InputError& error) {
    mine = {{"error", error.what()}};
    return nullptr;
  }
}

std::unique_ptr<SharedSegment> attach_segment(const Session& session, const Json& from, std::string& error) {
  if (from.contains("error")) {
    error = field<std::string>(from, 0, "error");
    return nullptr;
  }
  try {
    return SharedSegment::attach({field<int>(from, 0, "pid"), field<int>(from, 0, "fd"), field<uint64_t>(from, 0, "cookie"),
                                  field<uint64_t>(from, 0, "bytes")}, session.size);
  } catch (const InputError& refusal) {
    error = refusal.what();
    return nullptr;
  }
}

// Null, with the reason, where any rank cannot share memory.
std::unique_ptr<DataPath> share_memory(Rendezvous& rendezvous, const std::shared_ptr<Session>& session,
                                       const std::vector<int>& pids, std::string& why_not) {
  Json mine = Json::object();
  std::unique_ptr<SharedSegment> segment;
  if (session->rank == 0) segment = create_segment(*session, mine);
  const std::vector<Json> addresses = exchange(rendezvous, *session, mine);
  std::string error;
  if (session->rank != 0) segment = attach_segment(*session, addresses[0], error);
  if (session->rank == 0 && segment == nullptr) error = field<std::string>(mine, 0, "error");
  const std::vector<Json> outcomes = exchange(rendezvous, *session, {{"error", error}});
  for (size_t rank = 0; rank < outcomes.size() && why_not.empty(); ++rank)
    why_not = field<std::string>(outcomes[rank], static_cast<int>(rank), "error");
  if (!why_not.empty()) return nullptr;
  segment->seal();
  return std::make_unique<SharedPath>(session, std::move(segment), pids);
}

}  // namespace

std::unique_ptr<DataPath> connect(Rendezvous& rendezvous, const std::shared_ptr<Session>& session) {
  const std::vector<Json> all = exchange(rendezvous, *session, introduction(rendezvous));
  check_transport(all);
  std::string transport = all[0]["transport"];
  const bool one_node = all_equal(all, "node") && all_equal(all, "boot");
  if (transport == "auto") transport = one_node ? "shm" : "tcp";
  if (transport == "inproc" && !all_equal(all, "pid"))
    refuse("MUSTER_HOST_TRANSPORT=inproc: the ranks are not threads of one process");
  if (transport == "shm") {
    std::vector<int> pids;
    for (size_t rank = 0; rank < all.size(); ++rank) pids.push_back(field<int>(all[rank], static_cast<int>(rank), "pid"));
    std::string why_not;
    if (auto path = share_memory(rendezvous, session, pids, why_not)) return path;
    if (all[0]["transport"] == "shm") refuse("MUSTER_HOST_TRANSPORT=shm: {}", why_not);
    if (session->rank == 0) log_warn("host collective '{}': no shared memory ({}); using tcp", session->name, why_not);
    transport = "tcp";
  }
  return connect_sockets(rendezvous, session, transport, one_node);
}

}  // namespace muster::comm::host
