#pragma once

#include <cstdint>

#include "sharding/data_parallel/parameter.h"

namespace muster::worker {

// Fills the parameter's tensor: each element is a function of (seed, parameter name, element index), whatever the layout. Drawn in
// float64 on the CPU, then rounded.
void initialize_parameter(sharding::Parameter& parameter, uint64_t seed);

}  // namespace muster::worker
