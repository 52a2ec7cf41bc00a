#include "comm/topology/words.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace muster::comm::topology {
namespace {

constexpr int kMaxCpus = 8192;

bool is_hex(std::string_view word, size_t digits) { return word.size() == digits && parse_unsigned(word, 16).has_value(); }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

void normalise(CpuSet& cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
}

bool append_range(CpuSet& out, std::string_view range) {
  const size_t dash = range.find('-');
  const auto first = parse_int(range.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_int(range.substr(dash + 1));
  if (!first || !last || *first > *last || *last >= kMaxCpus || out.size() > kMaxCpus) return false;
  for (int cpu = *first; cpu <= *last; ++cpu) out.push_back(cpu);
  return true;
}

// `word` is one group of 32 CPUs; hwloc leaves empty groups out ("0x1,,0x3").
bool append_group(CpuSet& out, std::string_view word, int first) {
  if (word.starts_with("0x")) word.remove_prefix(2);
  if (word.empty()) return true;
  const auto bits = parse_unsigned(word, 16);
  if (!bits || word.size() > 8) return false;
  for (int bit = 0; bit < 32; ++bit)
    if (*bits >> bit & 1) out.push_back(first + bit);
  return true;
}

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const size_t end = text.find(separator);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    while (at < text.size() && !is_space(text[at])) ++at;
    if (at > start) out.emplace_back(text.substr(start, at - start));
    ++at;
  }
  return out;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> out;
  for (const auto line : split_at(text, '\n')) out.emplace_back(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line);
  return out;
}

std::optional<unsigned long long> parse_unsigned(std::string_view word, int base) {
  unsigned long long value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value, base);
  if (word.empty() || error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<int> parse_int(std::string_view word) {
  const auto value = parse_unsigned(word);
  return value && *value <= 0x7fffffff ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

std::optional<int> leading_int(std::string_view word) {
  size_t digits = 0;
  while (digits < word.size() && word[digits] >= '0' && word[digits] <= '9') ++digits;
  return parse_int(word.substr(0, digits));
}

std::string printable(std::string_view text, size_t most) {
  std::string out;
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > most ? out + "..." : out;
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

std::optional<std::string> normal_bus_id(std::string_view text) {
  const std::string id = lower(trimmed(text));
  auto parts = split_at(id, ':');
  if (parts.size() == 2) parts.insert(parts.begin(), "0000");
  if (parts.size() != 3 || !is_hex(parts[1], 2)) return std::nullopt;
  const size_t dot = parts[2].find('.');
  if (dot == std::string_view::npos || !is_hex(parts[2].substr(0, dot), 2) || !is_hex(parts[2].substr(dot + 1), 1))
    return std::nullopt;
  const auto domain = parse_unsigned(parts[0], 16);
  if (!domain || parts[0].size() > 8) return std::nullopt;
  return fmt::format("{:04x}:{}:{}", *domain, parts[1], parts[2]);
}

std::optional<CpuSet> parse_cpu_list(std::string_view list) {
  CpuSet out;
  const std::string text = trimmed(list);
  if (text.empty()) return out;
  for (const auto range : split_at(text, ','))
    if (!append_range(out, range)) return std::nullopt;
  normalise(out);
  return out;
}

std::optional<CpuSet> parse_cpu_mask(std::string_view mask) {
  CpuSet out;
  const std::string text = trimmed(mask);
  const auto groups = split_at(text, ',');
  if (text.empty() || groups.size() > kMaxCpus / 32) return std::nullopt;
  for (size_t i = 0; i < groups.size(); ++i)
    if (!append_group(out, groups[groups.size() - 1 - i], static_cast<int>(32 * i))) return std::nullopt;
  normalise(out);
  return out;
}

std::string to_cpu_list(const CpuSet& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    if (!out.empty()) out += ',';
    out += end > i ? fmt::format("{}-{}", cpus[i], cpus[end]) : std::to_string(cpus[i]);
    i = end + 1;
  }
  return out;
}

}  // namespace muster::comm::topology
