// What make_plan() needs to know about this machine.

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <sstream>
#include <thread>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/subprocess.h"
#include "launcher/launch_plan.h"

namespace muster::launcher {
namespace {

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::stringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::string first_line_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "re");
  if (!pipe) return "";
  char line[256] = {};
  if (!fgets(line, sizeof line, pipe)) line[0] = 0;
  pclose(pipe);
  const std::string text = line;
  return text.substr(0, text.find('\n'));
}

// "mpirun (Open MPI) 4.1.4" → 4.
int open_mpi_major(const std::string& version) {
  const size_t at = version.find("(Open MPI) ");
  return at == std::string::npos ? 0 : std::atoi(version.c_str() + at + 11);
}

// Another program may take it before rank 0 does; then rank 0 says so.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool good = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  if (!good) refuse("no free port on the loopback interface");
  return ntohs(address.sin_port);
}

std::string random_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string default_run_folder() {
  const std::time_t now = std::time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return fmt::format("runs/{}-{}", text, getpid());
}

}  // namespace

Machine machine_facts() {
  Machine m;
  m.host = host_name();
  m.root = geteuid() == 0;
  m.cores = usable_cores();
  m.mpirun = find_program("mpirun");
  if (!m.mpirun.empty()) m.mpi_version = first_line_of("'" + m.mpirun + "' --version 2>/dev/null </dev/null");
  m.open_mpi_major = open_mpi_major(m.mpi_version);
  m.ssh = !find_program("ssh").empty() || !find_program("rsh").empty();
  m.agent = program_folder() + "/muster-agent";
  m.true_program = find_program("true");
  m.terminal = isatty(STDOUT_FILENO) == 1;
  m.free_port = free_port();
  m.token = random_token();
  m.run_folder = default_run_folder();
  m.environment = comm::current_environment();
  return m;
}

}  // namespace muster::launcher
