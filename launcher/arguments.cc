#include "launcher/arguments.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace muster::launcher {
namespace {

// Levenshtein's distance, one row at a time.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<std::string> RunArguments::words() const {
  std::vector<std::string> all;
  if (!config_path.empty()) all.push_back(config_path);
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

RunArguments read_run_arguments(const std::vector<std::string>& words) {
  RunArguments out;
  const bool has_file = !words.empty() && !words[0].starts_with("-");
  if (has_file) out.config_path = words[0];
  out.settings.assign(words.begin() + (has_file ? 1 : 0), words.end());
  worker::parse_overrides(out.settings);
  return out;
}

worker::RunConfig checked_config(const RunArguments& arguments, int world_size) {
  auto config = worker::load_config(arguments.config_path, worker::parse_overrides(arguments.settings));
  worker::finalize_config(config, world_size);
  return config;
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = 3;
  for (const auto& candidate : candidates) {
    const size_t d = distance(word, candidate);
    if (d < best_distance && d < candidate.size()) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace muster::launcher
