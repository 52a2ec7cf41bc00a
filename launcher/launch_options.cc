#include "launcher/launch_options.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "comm/base/error.h"
#include "comm/rendezvous/environment.h"

namespace muster::launcher {
namespace {

constexpr int kMostRanks = 4096;
constexpr size_t kLargestHostFile = 1 << 20;  // bytes

int number(const std::string& where, const std::string& text) {
  return static_cast<int>(comm::parse_number(where, text, 1, kMostRanks));
}

double seconds(const std::string& where, const std::string& text) {
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 3600))
    refuse("{}: found '{}', wanted seconds from 0 to 3600", where, text);
  return value;
}

Engine engine(const std::string& where, const std::string& text) {
  if (text == "auto") return Engine::kAuto;
  if (text == "mpirun") return Engine::kMpirun;
  if (text == "local") return Engine::kLocal;
  refuse("{}: found '{}', wanted auto, mpirun or local", where, text);
}

void check_host_name(const std::string& where, const std::string& name) {
  const bool good = !name.empty() && name[0] != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_';
  });
  if (!good) refuse("{}: found '{}', wanted a host name", where, name);
}

// "name" or "name:slots".
Host parse_host(const std::string& where, const std::string& text) {
  const size_t colon = text.find(':');
  Host host{text.substr(0, colon), 0};
  check_host_name(where, host.name);
  if (colon != std::string::npos) host.slots = number(where, text.substr(colon + 1));
  return host;
}

std::string read_host_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kLargestHostFile + 1, '\0');
  if (!in || !in.read(text.data(), 0)) refuse("--hostfile: cannot open {}: {}", path, std::strerror(errno));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) refuse("--hostfile: cannot read {}: {}", path, std::strerror(errno));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kLargestHostFile) refuse("--hostfile: {} is larger than 1 MiB", path);
  return text;
}

Host parse_host_line(const std::string& where, const std::vector<std::string>& words) {
  Host host = parse_host(where, words[0]);
  for (size_t i = 1; i < words.size(); ++i) {
    if (!words[i].starts_with("slots=")) refuse("{}: found '{}', wanted 'name', 'name slots=N' or 'name:N'", where, words[i]);
    host.slots = number(where, words[i].substr(6));
  }
  return host;
}

void add_hosts(LaunchOptions& o, std::vector<Host> hosts) {
  if (!o.hosts.empty()) refuse("--hosts and --hostfile: found both, wanted one");
  o.hosts = std::move(hosts);
}

using Setter = std::function<void(LaunchOptions&, const std::string& where, const std::string& value)>;

const std::map<std::string, Setter>& valued_options() {
  static const std::map<std::string, Setter> all = {
      {"-n", [](auto& o, auto& where, auto& v) { o.ranks = number(where, v); }},
      {"-np", [](auto& o, auto& where, auto& v) { o.ranks = number(where, v); }},
      {"--nproc-per-node", [](auto& o, auto& where, auto& v) { o.ranks_per_node = number(where, v); }},
      {"--nproc_per_node", [](auto& o, auto& where, auto& v) { o.ranks_per_node = number(where, v); }},
      {"--nnodes", [](auto& o, auto& where, auto& v) { o.nodes = number(where, v); }},
      {"--hosts", [](auto& o, auto& where, auto& v) { add_hosts(o, parse_hosts(where, v)); }},
      {"--host", [](auto& o, auto& where, auto& v) { add_hosts(o, parse_hosts(where, v)); }},
      {"--hostfile", [](auto& o, auto&, auto& v) { add_hosts(o, parse_host_file(v, read_host_file(v))); }},
      {"--engine", [](auto& o, auto& where, auto& v) { o.engine = engine(where, v); }},
      {"--grace-s", [](auto& o, auto& where, auto& v) { o.grace_s = seconds(where, v); }},
  };
  return all;
}

bool set_flag(LaunchOptions& o, const std::string& word) {
  if (word == "--dry-run") return o.dry_run = true;
  if (word == "--verbose") return o.verbose = true;
  if (word == "--help" || word == "-h") return o.help = true;
  return false;
}

void check_short_option(const std::string& word) {
  if (word.size() < 2 || word[0] != '-' || word[1] == '-' || std::isdigit(static_cast<unsigned char>(word[1]))) return;
  const std::string hint = nearest(word, {"-n", "-np", "-h"});
  refuse("command line: unknown option '{}'{}", word,
         hint.empty() ? "; see muster launch --help" : ", did you mean " + hint + "?");
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& where, const std::string& text) {
  std::vector<Host> hosts;
  std::stringstream in(text + ",");
  for (std::string one; std::getline(in, one, ',');) hosts.push_back(parse_host(where, one));
  return hosts;
}

std::vector<Host> parse_host_file(const std::string& path, const std::string& text) {
  std::vector<Host> hosts;
  std::stringstream in(text);
  int line_number = 0;
  for (std::string line; std::getline(in, line);) {
    ++line_number;
    std::stringstream words(line.substr(0, line.find('#')));
    std::vector<std::string> split;
    for (std::string word; words >> word;) split.push_back(word);
    if (!split.empty()) hosts.push_back(parse_host_line(fmt::format("{}:{}", path, line_number), split));
  }
  if (hosts.empty()) refuse("--hostfile: {} names no host", path);
  return hosts;
}

LaunchOptions parse_launch_options(const std::vector<std::string>& words) {
  LaunchOptions options;
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].starts_with("--") ? words[i].find('=') : std::string::npos;
    const std::string name = words[i].substr(0, equals);
    const auto found = valued_options().find(name);
    if (found != valued_options().end()) {
      if (equals == std::string::npos && i + 1 == words.size()) refuse("{}: needs a value", name);
      const std::string value = equals != std::string::npos ? words[i].substr(equals + 1) : words[++i];
      found->second(options, name, value);
    } else if (!set_flag(options, words[i])) {
      // A negative number may be a setting's value; any other short word is a mistyped option.
      check_short_option(words[i]);
      rest.push_back(words[i]);
    }
  }
  // The configuration may stand anywhere before the first setting.
  options.run = read_run_arguments(rest);
  return options;
}

std::string launch_help() {
  return R"(muster launch CONFIG.yaml [options] [--key value ...]

Trains one model over several ranks and ends with the exit code of the first thing that went wrong.

  -n N                    ranks in all (default: one a slot of the hosts, else 1)
  --nproc-per-node N      ranks on each node
  --nnodes N              nodes to use
  --hosts a:2,b:2         hosts and their ranks; over mpirun
  --hostfile FILE         the same, a line a host: name [slots=N]
  --engine ENGINE         auto, mpirun or local (default auto: mpirun where it is installed)
  --grace-s SECONDS       from Ctrl-C to the kill of what is left (default 10); a second Ctrl-C kills at once
  --dry-run               show ranks, places and the exact command; start nothing
  --verbose               more log lines, and mpirun's own words

Every key of the configuration is an option too:

)" + worker::config_help();
}

}  // namespace muster::launcher
