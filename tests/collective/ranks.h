#pragma once
// N ranks as N threads of this test.

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/collective/backends.h"

namespace muster::comm {

// Sets MUSTER_HOST_TRANSPORT while it lives.
class ForcedTransport {
 public:
  explicit ForcedTransport(const std::string& name) { setenv("MUSTER_HOST_TRANSPORT", name.c_str(), 1); }
  ~ForcedTransport() { unsetenv("MUSTER_HOST_TRANSPORT"); }
};

using RankBody = std::function<void(Communicator&)>;

// Runs `body` on every rank of a new host communicator. Returns what() of what each rank threw, empty where nothing.
inline std::vector<std::string> run_ranks(int size, const CommunicatorOptions& options, const RankBody& body) {
  auto meetings = make_thread_rendezvous(size);
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto communicator = make_host_communicator(*meetings[rank], options);
        body(*communicator);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_ranks(int size, const RankBody& body) {
  return run_ranks(size, {"test", std::chrono::seconds(60)}, body);
}

// The ranks that must have no error.
inline std::string all_errors(const std::vector<std::string>& errors) {
  std::string joined;
  for (const std::string& error : errors) joined += error.empty() ? "" : error + "\n";
  return joined;
}

}  // namespace muster::comm
