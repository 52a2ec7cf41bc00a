#include "launcher/outcome.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

std::filesystem::path path_in(const std::string& run_folder) { return std::filesystem::path(run_folder) / "outcome.json"; }

}  // namespace

void write_outcome(const std::string& run_folder, const Outcome& outcome) noexcept {
  try {
    const nlohmann::json json{{"exit_code", outcome.exit_code}, {"cause", outcome.cause}};
    std::ofstream(path_in(run_folder)) << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } catch (const std::exception&) {
    // It is a convenience for readers; the exit code and the line on stderr are the promise.
  }
}

void forget_outcome(const std::string& run_folder) noexcept {
  std::error_code error;
  std::filesystem::remove(path_in(run_folder), error);
}

std::optional<Outcome> read_outcome(const std::string& run_folder) {
  std::ifstream in(path_in(run_folder));
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("exit_code") || !json["exit_code"].is_number_integer()) return std::nullopt;
  return Outcome{json["exit_code"], json.value("cause", "")};
}

}  // namespace muster::launcher
