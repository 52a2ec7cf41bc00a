// Times the host backend's all_reduce between N processes. scripts/bench-allreduce-cpu.py drives it.
//
//   allreduce_bench RANKS [transport]
//   stdin:  "BYTES WARMUP ITERATIONS" a line; stdout: the seconds of each iteration on rank 0, as one JSON list a line.

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include <ATen/ops/ones.h>
#include <cxxopts.hpp>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/collective/backends.h"
#include "tests/collective/file_rendezvous.h"

namespace {

using namespace muster;

struct Order {
  long long bytes = 0;
  int warmup = 0, iterations = 0;
};

// A fast wrong sum is no result.
void check(const at::Tensor& tensor, double wanted) {
  const float* data = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    if (data[i] != static_cast<float>(wanted))
      throw std::runtime_error(fmt::format("element {}: {}, not {}", i, data[i], wanted));
}

void measure(comm::Communicator& comm, const Order& order) {
  const at::Tensor tensor = at::ones({order.bytes / 4});
  std::vector<double> seconds;
  for (int i = 0; i < order.warmup + order.iterations; ++i) {
    if (i % 8 == 0) tensor.fill_(1.0);  // stays finite
    const auto start = Clock::now();
    comm.all_reduce(tensor)->wait();
    if (i >= order.warmup) seconds.push_back(seconds_since(start));
  }
  check(tensor, std::pow(comm.size(), (order.warmup + order.iterations - 1) % 8 + 1));
  if (comm.rank() == 0) fmt::print("[{:.7f}]\n", fmt::join(seconds, ", "));
  std::fflush(stdout);
}

void run_rank(const std::filesystem::path& folder, int rank, int size, int orders_fd) {
  comm::FileRendezvous rendezvous(folder, rank, size);
  const auto communicator = comm::make_host_communicator(rendezvous, {"bench", std::chrono::seconds(60)});
  Order order;
  while (read(orders_fd, &order, sizeof order) == sizeof order) measure(*communicator, order);
}

// Forks before any thread exists. Returns the descriptor that takes the rank's orders.
int start_rank(const std::filesystem::path& folder, int rank, int size, std::vector<int>& descriptors) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t parent = getpid(), child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) {
    close(ends[0]);
    return ends[1];
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  close(ends[1]);
  for (int descriptor : descriptors) close(descriptor);
  int status = 0;
  try {
    run_rank(folder, rank, size, ends[0]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    status = 1;
  }
  _exit(status);
}

void relay_orders(const std::vector<int>& ranks) {
  for (std::string line; std::getline(std::cin, line);) {
    Order order;
    std::istringstream words(line);
    if (!(words >> order.bytes >> order.warmup >> order.iterations)) throw std::runtime_error("order: " + line);
    for (int rank : ranks)
      if (write(rank, &order, sizeof order) != sizeof order) throw std::runtime_error("a rank has ended");
  }
}

}  // namespace

int main(int argc, char** argv) {
  cxxopts::Options options("allreduce_bench", "The host backend's all-reduce; orders on stdin: bytes, warm-up, iterations");
  options.add_options()("ranks", "processes", cxxopts::value<int>())("transport", "shm, ipc, tcp or inproc", cxxopts::value<std::string>());
  options.parse_positional({"ranks", "transport"});
  int size = 0;
  try {
    const auto given = options.parse(argc, argv);
    size = given["ranks"].as<int>();
    if (given.count("transport")) setenv("MUSTER_HOST_TRANSPORT", given["transport"].as<std::string>().c_str(), 1);
  } catch (const std::exception& e) {
    fmt::print(stderr, "allreduce_bench: {}\n{}", e.what(), options.help());
  }
  if (size < 1) return kExitInput;
  std::signal(SIGPIPE, SIG_IGN);
  char pattern[] = "/tmp/muster-bench-XXXXXX";
  const std::filesystem::path folder = mkdtemp(pattern);
  std::vector<int> orders;
  for (int rank = 0; rank < size; ++rank) orders.push_back(start_rank(folder, rank, size, orders));
  int worst = 0;
  try {
    relay_orders(orders);
  } catch (const std::exception& error) {
    fmt::print(stderr, "allreduce_bench: {}\n", error.what());
    worst = kExitInternal;
  }
  for (int descriptor : orders) close(descriptor);
  for (int status = 0; wait(&status) > 0;) worst = std::max(worst, status == 0 ? 0 : 1);
  std::filesystem::remove_all(folder);
  return worst;
}
