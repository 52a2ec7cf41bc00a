#pragma once

#include <string>

#include "worker/config/run_config.h"

namespace muster::launcher {

// Makes the folder of this run with logs/ and config.yaml in it and returns its absolute path. An empty config.run_dir stands
// for runs/<date>-<time>-<pid>. InputError naming the folder and the reason.
std::string make_run_folder(worker::RunConfig config);

// Makes sure that the folder is there on this node too and returns the path of the rank's log, empty where there can be none.
std::string log_path_in(const std::string& run_folder, int rank);

// As a person in the current folder would write it.
std::string shown_path(const std::string& path);

}  // namespace muster::launcher
