#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

// `muster topo`: prints this machine, or saved ones. Returns the exit code; InputError on bad input. Blocks for as long as the
// driver takes to answer, which is milliseconds.
int topo(const std::vector<std::string>& words);

}  // namespace muster::launcher
