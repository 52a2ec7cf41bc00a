#pragma once

#include <string>
#include <vector>

#include "worker/config/run_config.h"

namespace muster::launcher {

// "CONFIG.yaml --key value ...": what agents and workers are given.
struct RunArguments {
  std::string config_path;            // empty: defaults only
  std::vector<std::string> settings;  // "--key", "value", ...
  std::vector<std::string> words() const;
};

// InputError where a second positional word appears.
RunArguments read_run_arguments(const std::vector<std::string>& words);

// Reads and checks the configuration for a job of that many ranks. InputError.
worker::RunConfig checked_config(const RunArguments& arguments, int world_size);

// The candidate that is at most two edits away, else empty.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace muster::launcher
