#pragma once

#include <optional>
#include <string>

namespace muster::launcher {

// How a run ended: outcome.json in its folder, written by the agent that shows the cause.
struct Outcome {
  int exit_code = 0;
  std::string cause;  // "rank 1 on host: ..."; empty where all went well
};

// Never throws: a run that ended does not fail for this.
void write_outcome(const std::string& run_folder, const Outcome& outcome) noexcept;
void forget_outcome(const std::string& run_folder) noexcept;
// Nothing where no agent has written one.
std::optional<Outcome> read_outcome(const std::string& run_folder);

}  // namespace muster::launcher
