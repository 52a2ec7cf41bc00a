#pragma once
// Log lines of a process: "12:04:31.123 [name] warn: text" on stderr. Safe to call from any thread.

#include <string>

#include <fmt/format.h>

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// name: "muster", "agent 0", "rank 3". Level from MUSTER_LOG_LEVEL (debug, info, warn, error), else info.
void log_init(const std::string& name);
void log_write(LogLevel level, const std::string& text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace muster
