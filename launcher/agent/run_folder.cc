#include "launcher/agent/run_folder.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "comm/base/error.h"
#include "comm/base/log.h"
#include "launcher/outcome.h"

namespace muster::launcher {
namespace {

namespace fs = std::filesystem;

std::string default_name() {
  const std::time_t now = std::time(nullptr);
  tm local;
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return fmt::format("runs/{}-{}", text, getpid());
}

}  // namespace

std::string make_run_folder(worker::RunConfig config) {
  if (config.run_dir.empty()) config.run_dir = default_name();
  std::error_code error;
  const fs::path folder = fs::absolute(config.run_dir, error).lexically_normal();
  if (!error) fs::create_directories(folder / "logs", error);
  if (error) refuse("run_dir: cannot make {}: {}", config.run_dir, error.message());
  config.run_dir = folder.string();
  forget_outcome(folder.string());
  std::ofstream out(folder / "config.yaml");
  out << worker::to_yaml(config) << std::flush;
  if (!out) refuse("run_dir: cannot write {}: {}", (folder / "config.yaml").string(), std::strerror(errno));
  return folder.string();
}

std::string log_path_in(const std::string& run_folder, int rank) {
  std::error_code error;
  fs::create_directories(fs::path(run_folder) / "logs", error);
  if (!error) return (fs::path(run_folder) / "logs" / fmt::format("rank-{}.log", rank)).string();
  log_warn("no log file for rank {}: cannot make {}/logs: {}", rank, run_folder, error.message());
  return "";
}

std::string shown_path(const std::string& path) {
  std::error_code error;
  const std::string near = fs::path(path).lexically_relative(fs::current_path(error)).string();
  return error || near.empty() || near.starts_with("..") ? path : near;
}

}  // namespace muster::launcher
