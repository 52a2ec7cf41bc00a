#pragma once
// Small words of topology files: numbers, bus ids, CPU lists and masks. Pure; nothing here throws on bad input.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::comm::topology {

inline bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v'; }
std::string trimmed(std::string_view text);
std::vector<std::string> split_words(std::string_view text);  // at white space
std::vector<std::string> split_lines(std::string_view text);  // without \n or \r\n

// The whole word is digits of that base, and fits.
std::optional<unsigned long long> parse_unsigned(std::string_view word, int base = 10);
std::optional<int> parse_int(std::string_view word);    // 0 up
std::optional<int> leading_int(std::string_view word);  // "16x" is 16

// What goes into one line: at most `most` bytes, all but printable ASCII as \xNN.
std::string printable(std::string_view text, size_t most = 40);
std::string in_quotes(std::string_view text);  // the same in quotes
inline constexpr size_t kLongName = 96;        // of a CPU or GPU model

// "00000000:18:00.0", "0000:18:00.0", "18:00.0", any case, to "0000:18:00.0" (a domain above ffff keeps its 8 digits).
std::optional<std::string> normal_bus_id(std::string_view text);

// CPU numbers, ascending and once each.
using CpuSet = std::vector<int>;
std::optional<CpuSet> parse_cpu_list(std::string_view list);  // "0-15,32"; at most 8192 CPUs
std::optional<CpuSet> parse_cpu_mask(std::string_view mask);  // "000000ff,ffff0000": 32-bit words, highest first; 0x allowed
std::string to_cpu_list(const CpuSet& cpus);

}  // namespace muster::comm::topology
