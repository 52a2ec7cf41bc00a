#pragma once

#include <string>
#include <vector>

#include "comm/base/deadline.h"
#include "comm/base/subprocess.h"

namespace muster::launcher {

struct Supervision {
  int exit_code = 0;       // of the first process that did not end well; 130 or 143 where a signal ended the job
  int interrupted_by = 0;  // SIGINT, SIGTERM or SIGHUP, where one was received
  int first_bad = -1;      // index of that process
  Ending first_ending;
};

// Runs the processes to their end. The first SIGINT, SIGTERM or SIGHUP is passed on as SIGTERM; a second one, or `grace`
// after the first, kills everything. When one process ends badly, the others get `grace`, 5 s at most, to end too.
// Nothing that any of them started outlives this call: orphans are adopted and killed.
//
// Call before any thread exists: it blocks these signals. InputError where a process cannot be started.
Supervision supervise(const std::vector<Subprocess>& processes, milliseconds grace);

}  // namespace muster::launcher
