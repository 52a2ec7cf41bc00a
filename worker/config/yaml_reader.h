#pragma once

#include <string>

#include "worker/config/run_config.h"

namespace muster::worker {

// Sets in `config` what the YAML mapping `text` says; a mapping as value is a group. `path` is for messages alone.
// InputError("<path>:<line>: ..."): not YAML, unknown key, a key twice, wrong type, out of range.
void read_yaml(RunConfig& config, const std::string& path, const std::string& text);

}  // namespace muster::worker
