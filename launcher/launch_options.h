#pragma once

#include <string>
#include <vector>

#include "launcher/arguments.h"

namespace muster::launcher {

enum class Engine { kAuto, kMpirun, kLocal };

struct Host {
  std::string name;
  int slots = 0;  // 0: not said
  bool operator==(const Host&) const = default;
};

// `muster launch`'s own options; 0 stands for "not said".
struct LaunchOptions {
  int ranks = 0, ranks_per_node = 0, nodes = 0;
  std::vector<Host> hosts;
  Engine engine = Engine::kAuto;
  double grace_s = 10;  // from the first signal to SIGKILL
  bool dry_run = false, verbose = false, help = false;
  RunArguments run;  // everything else: for the run's configuration
};

// InputError naming option, found and wanted. Reads the host file.
LaunchOptions parse_launch_options(const std::vector<std::string>& words);

// "a:2,b:2"; slots may be left out. InputError naming `where`.
std::vector<Host> parse_hosts(const std::string& where, const std::string& text);

// A line a host: "name", "name slots=4", "name:4"; # starts a comment. InputError naming path:line.
std::vector<Host> parse_host_file(const std::string& path, const std::string& text);

std::string launch_help();

}  // namespace muster::launcher
