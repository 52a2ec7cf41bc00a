#pragma once

#include <string>

#include "sharding/pipeline/schedule/schedule.h"
#include "sharding/pipeline/schedule/simulator.h"

namespace muster::sharding::pipeline {

// The timeline as text: a row a rank, a column a slot of time, as long as the shortest cost (longer where the picture would get
// too wide). A cell is an action of computation, "F3" or, with several chunks, as in the CSV with its stage: "4F3"; "--" where it
// goes on, "." where the rank has nothing to do.
std::string to_text_grid(const Schedule& schedule, const Timeline& timeline, const Costs& costs);

// The same to scale as an SVG document: forward blue, whole backward or its input part orange, weight part green, later chunks
// darker. Each box says what it is when pointed at.
std::string to_svg(const Schedule& schedule, const Timeline& timeline, const Costs& costs);

}  // namespace muster::sharding::pipeline
