// Ranks as real processes, one of which is killed.

#include <csignal>
#include <cstdlib>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/collective/file_rendezvous.h"
#include "tests/collective/ranks.h"

namespace muster::comm {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3, kVictim = 1;
constexpr milliseconds kPatience{60'000};

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path.string() + ".new") << text;
  fs::rename(path.string() + ".new", path);
}

std::string read(const fs::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// The body of a rank: reduces without end, reports that it runs, then how it ended.
void reduce_until_the_end(const fs::path& folder, int rank) {
  FileRendezvous rendezvous(folder, rank, kRanks);
  const auto comm = make_host_communicator(rendezvous, {"test", kPatience});
  try {
    for (int i = 0;; ++i) {
      comm->all_reduce(at::ones({i % 2 == 0 ? 100 : 50'000}))->wait();
      if (i == 20) write(folder / fmt::format("runs.{}", rank), "");
    }
  } catch (const PeerError& error) {
    write(folder / fmt::format("end.{}", rank), fmt::format("{} {}", error.context().rank, error.what()));
  }
}

// Not a test by itself: what the processes below run.
TEST(HostProcess, DISABLED_Rank) {
  const char* folder = std::getenv("MUSTER_TEST_FOLDER");
  if (folder != nullptr) reduce_until_the_end(folder, std::atoi(std::getenv("MUSTER_TEST_RANK")));
}

// This program again, as a rank. A new image, because a fork would inherit locks of this one's threads.
pid_t spawn_rank(const fs::path& folder, int rank, const std::string& transport) {
  setenv("MUSTER_TEST_FOLDER", folder.c_str(), 1);
  setenv("MUSTER_TEST_RANK", std::to_string(rank).c_str(), 1);
  setenv("MUSTER_HOST_TRANSPORT", transport.c_str(), 1);
  char program[] = "test_collective", filter[] = "--gtest_filter=HostProcess.DISABLED_Rank";
  char disabled[] = "--gtest_also_run_disabled_tests", brief[] = "--gtest_brief=1";
  char* arguments[] = {program, filter, disabled, brief, nullptr};
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ), 0);
  for (const char* name : {"MUSTER_TEST_FOLDER", "MUSTER_TEST_RANK", "MUSTER_HOST_TRANSPORT"}) unsetenv(name);
  return pid;
}

bool wait_for_file(const fs::path& path) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!fs::exists(path) && !deadline.expired()) std::this_thread::sleep_for(milliseconds(5));
  return fs::exists(path);
}

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().find("muster") != std::string::npos) names.push_back(entry.path());
  return names;
}

class HostProcesses : public testing::TestWithParam<const char*> {};

TEST_P(HostProcesses, AKilledRankIsNamedAndLeavesNothing) {
  char pattern[] = "/tmp/muster-test-XXXXXX";
  const fs::path folder = mkdtemp(pattern);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) pids.push_back(spawn_rank(folder, rank, GetParam()));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(wait_for_file(folder / fmt::format("runs.{}", rank)));
  kill(pids[kVictim], SIGKILL);
  for (int rank : {0, 2}) {
    EXPECT_TRUE(wait_for_file(folder / fmt::format("end.{}", rank)));
    EXPECT_THAT(read(folder / fmt::format("end.{}", rank)), AllOf(testing::StartsWith("1 "), HasSubstr("all_reduce #"),
                                                                  HasSubstr("rank 1"), HasSubstr("ended")));
  }
  for (pid_t pid : pids) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  EXPECT_THAT(shared_memory_files(), testing::IsEmpty());
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Transport, HostProcesses, testing::Values("shm", "ipc", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster::comm
