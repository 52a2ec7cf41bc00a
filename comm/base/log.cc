#include "comm/base/log.h"

#include <cstdlib>
#include <cstring>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace muster {
namespace {

spdlog::level::level_enum level_from_environment() {
  const char* wanted = std::getenv("MUSTER_LOG_LEVEL");
  if (!wanted) return spdlog::level::info;
  const auto level = spdlog::level::from_str(wanted);
  return level == spdlog::level::off && std::strcmp(wanted, "off") != 0 ? spdlog::level::info : level;
}

spdlog::logger& logger() {
  // Leaked on purpose: threads may log while the process ends.
  static auto* instance = [] {
    auto* made = new spdlog::logger("muster", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S.%e [muster] %l: %v");
    made->set_level(level_from_environment());
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

void log_init(const std::string& name) { logger().set_pattern("%H:%M:%S.%e [" + name + "] %l: %v"); }

void log_write(LogLevel level, const std::string& text) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                          spdlog::level::err};
  logger().log(kLevels[static_cast<int>(level)], text);
}

}  // namespace muster
