#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

// `muster memory`: what a rank needs of its device's memory. Returns the exit code. InputError.
int memory(const std::vector<std::string>& words);

}  // namespace muster::launcher
