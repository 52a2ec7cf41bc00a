#pragma once

#include <string>
#include <vector>

#include "sharding/pipeline/schedule/generators.h"
#include "sharding/pipeline/schedule/simulator.h"

namespace muster::launcher {

struct PipelineOptions {
  sharding::pipeline::ScheduleRequest schedule;
  bool schedule_given = false;  // any of --schedule, --stages, --micro-batches, --chunks
  std::string csv;              // read instead
  sharding::pipeline::Costs costs;
  int most_live = 0;           // --max-live; 0: any number
  std::string svg, write_csv;  // paths; empty: not written
  bool json = false, help = false;
};

// InputError naming the option.
PipelineOptions parse_pipeline_options(const std::vector<std::string>& words);

// What `muster pipeline` prints for a valid schedule: the grid and the figures, or one JSON object.
std::string pipeline_report(const sharding::pipeline::Schedule& schedule, const PipelineOptions& options);

// `muster pipeline`: makes or reads a schedule, validates it and shows it. Starts nothing. Returns the exit code; InputError.
int pipeline(const std::vector<std::string>& words);

}  // namespace muster::launcher
