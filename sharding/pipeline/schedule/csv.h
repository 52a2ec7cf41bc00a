#pragma once

#include <string>

#include "sharding/pipeline/schedule/schedule.h"

namespace muster::sharding::pipeline {

// A schedule as comma-separated text (docs/pipeline.md): a row a rank, a cell an action ("0F3"), empty cells skipped, as are
// empty lines and lines that begin with '#'. PyTorch's schedule files are read too.
std::string to_csv(const Schedule& schedule);

// Reads what to_csv wrote, or what somebody else did. Ranks, stages, micro-batches and placement follow from the cells. What can
// be derived and is wholly absent (messages, reductions, unshards) is added. Not yet validated. InputError "name:line:column:
// found ..., wanted ...".
Schedule from_csv(const std::string& name, const std::string& text);

// The file's text; InputError where it cannot be read or is larger than 64 MiB.
Schedule read_csv(const std::string& path);

}  // namespace muster::sharding::pipeline
