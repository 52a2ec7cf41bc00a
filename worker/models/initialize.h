#pragma once

#include <cstdint>
#include <vector>

#include "sharding/data_parallel/parameter.h"

namespace muster::worker {

// Fills the parameters: each element is a function of (seed, parameter name, element index), whatever the layout. Drawn in
// float64 on the CPU, then rounded.
void initialize_parameters(const std::vector<sharding::Parameter*>& parameters, uint64_t seed);

}  // namespace muster::worker
