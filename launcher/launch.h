#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

// `muster launch`: returns the exit code of the job's first cause. InputError before anything is started.
int launch(const std::vector<std::string>& words);

}  // namespace muster::launcher
