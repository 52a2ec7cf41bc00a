// A worker without training, for the launcher's tests. FAKE_MODE says what it does, FAKE_RANK on which ranks; the others do
// FAKE_OTHERS, or "ok":
//
//   ok            three exchanges, checked; ends with 0
//   exit:N        two exchanges, then exits with N       early:N   exits with N before the first exchange
//   refuse        reports refused input, exits with 2    peer      reports a lost peer, exits with 3
//   segfault      after one exchange                     kill9     kills itself with SIGKILL after one exchange
//   hang          sleeps after one exchange              stubborn  the same and ignores SIGTERM
//   never         sleeps without any exchange            chatty    prints 20,000 lines
//   late          exchanges once with a deadline of 0.3 s, the ranks in FAKE_RANK do not come

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "comm/control/agent_link.h"

namespace {

using namespace muster;

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

bool chosen(int rank) {
  const std::string ranks = environment("FAKE_RANK", "");
  return ranks.empty() || ("," + ranks + ",").find("," + std::to_string(rank) + ",") != std::string::npos;
}

void exchange(comm::Rendezvous& rendezvous, milliseconds patience = milliseconds(20'000)) {
  static int round = 0;
  const auto& place = rendezvous.place();
  const auto table = rendezvous.exchange(fmt::format("{}.{}", place.rank, round), Deadline::after(patience));
  for (int rank = 0; rank < place.world_size; ++rank) MUSTER_CHECK_EQ(table[rank], fmt::format("{}.{}", rank, round));
  ++round;
}

// Ends by itself after a minute whatever happens: no test leaves it behind.
void sleep_long() {
  for (int i = 0; i < 600; ++i) std::this_thread::sleep_for(milliseconds(100));
}

[[noreturn]] void fail(const std::string& line, int code) {
  log_error("{}", line);
  comm::report_failure(line, code);
  std::exit(code);
}

void before_exchange(const std::string& mode) {
  if (mode.starts_with("early:")) std::exit(std::stoi(mode.substr(6)));
  if (mode == "refuse") fail("data: found nothing, wanted a file", kExitInput);
  if (mode == "never") sleep_long();
}

void after_exchange(const std::string& mode, comm::Rendezvous& rendezvous) {
  if (mode == "segfault") std::raise(SIGSEGV);
  if (mode == "kill9") std::raise(SIGKILL);
  if (mode == "stubborn") std::signal(SIGTERM, SIG_IGN);
  if (mode == "hang" || mode == "stubborn") sleep_long();
  if (mode == "peer") fail("all_reduce #7: rank 0: connection lost", kExitPeer);
  for (int i = 0; mode == "chatty" && i < 20'000; ++i) std::printf("line %d of many\n", i);
  exchange(rendezvous);
  if (mode.starts_with("exit:")) std::exit(std::stoi(mode.substr(5)));
}

int run(comm::Rendezvous& rendezvous) {
  const int rank = rendezvous.place().rank;
  log_init(fmt::format("rank {}", rank));
  const std::string mode = chosen(rank) ? environment("FAKE_MODE", "ok") : environment("FAKE_OTHERS", "ok");
  if (environment("FAKE_MODE", "") == "late") {
    if (mode == "late") sleep_long();
    exchange(rendezvous, milliseconds(300));
  }
  before_exchange(mode);
  exchange(rendezvous);
  std::fprintf(stderr, "rank %d met %d ranks\n", rank, rendezvous.place().world_size);
  after_exchange(mode, rendezvous);
  exchange(rendezvous);
  std::printf("rank %d done\n", rank);
  return 0;
}

}  // namespace

int main() {
  try {
    return run(*comm::make_agent_rendezvous());
  } catch (const PeerError& error) {
    fail(error.what(), kExitPeer);
  } catch (const std::exception& error) {
    fail(error.what(), kExitInternal);
  }
}
