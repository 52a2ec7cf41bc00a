#include "sharding/pipeline/schedule/csv.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include <fmt/ranges.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/complete.h"
#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

constexpr size_t kLargestFile = 64 << 20;  // bytes
constexpr size_t kShownCharacters = 40;
constexpr const char* kWantedCell =
    "stage, kind and micro-batch as 0F0, 0B0, 0I0, 0W0, 0SEND_F0, 0RECV_F0, 0SEND_B0, 0RECV_B0, or 0REDUCE_GRAD, 0UNSHARD";

// Foreign text in a message: one line, not too long.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, kShownCharacters));
  for (char& c : out)
    if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
  return text.size() > kShownCharacters ? out + "..." : out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

class Reader {
 public:
  Reader(const std::string& name, std::string_view text) : name_(name), text_(text) { schedule_.name = name; }

  Schedule read() {
    while (!text_.empty()) take_line();
    derive_sizes();
    complete(schedule_);
    return std::move(schedule_);
  }

 private:
  void take_line() {
    ++line_;
    const size_t end = text_.find('\n');
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (trimmed(line).empty() || line.starts_with('#')) return;
    if (schedule_.actions.size() == kMostRanks)
      refuse("{}:{}: found another row, wanted at most {}, one a rank", name_, line_, kMostRanks);
    line_of_rank_.push_back(line_);
    schedule_.actions.emplace_back();
    take_cells(line);
  }

  void take_cells(std::string_view line) {
    size_t begin = 0;
    while (begin <= line.size()) {
      const size_t end = std::min(line.find(',', begin), line.size());
      const std::string_view cell = trimmed(line.substr(begin, end - begin));
      column_ = begin + 1 + (cell.empty() ? 0 : cell.data() - line.data() - begin);
      if (!cell.empty()) take_action(cell);
      begin = end + 1;
    }
  }

  void take_action(std::string_view cell) {
    Action action;
    if (!parse_action(cell, action)) refuse("{}: found '{}', wanted {}", where(), shown(cell), kWantedCell);
    if (action.stage >= kMostCells || action.micro_batch >= kMostCells)
      refuse("{}: found '{}', wanted stage and micro-batch below {}", where(), shown(cell), kMostCells);
    place_stage(action, cell);
    schedule_.micro_batches = std::max(schedule_.micro_batches, action.micro_batch + 1);
    schedule_.actions.back().push_back(action);
  }

  // The first row that names a stage has it.
  void place_stage(const Action& action, std::string_view cell) {
    auto& ranks = schedule_.rank_of_stage;
    const int rank = static_cast<int>(schedule_.actions.size()) - 1;
    if (action.stage >= static_cast<int>(ranks.size())) ranks.resize(action.stage + 1, -1);
    int& holder = ranks[action.stage];
    if (holder == -1) holder = rank;
    if (holder != rank)
      refuse("{}: found '{}' on rank {}, wanted stage {} on rank {} alone, which has it in line {}", where(), shown(cell), rank,
             action.stage, holder, line_of_rank_[holder]);
  }

  void derive_sizes() {
    auto& s = schedule_;
    s.ranks = static_cast<int>(s.actions.size());
    if (s.ranks == 0) refuse("{}: found no row, wanted one a rank", name_);
    const auto lost = std::find(s.rank_of_stage.begin(), s.rank_of_stage.end(), -1);
    if (lost != s.rank_of_stage.end())
      refuse("{}: found no action of stage {}, wanted all of stages 0 to {}", name_, lost - s.rank_of_stage.begin(),
             s.stages() - 1);
    if (s.stages() % s.ranks != 0)
      refuse("{}: found {} stages on {} ranks, wanted the same number on each", name_, s.stages(), s.ranks);
    s.chunks = s.stages() / s.ranks;
  }

  std::string where() const { return fmt::format("{}:{}:{}", name_, line_, column_); }

  const std::string& name_;
  std::string_view text_;
  int line_ = 0;
  size_t column_ = 0;
  std::vector<int> line_of_rank_;
  Schedule schedule_;
};

}  // namespace

std::string to_csv(const Schedule& schedule) {
  std::string out;
  for (const auto& list : schedule.actions) {
    std::vector<std::string> cells;
    for (const Action& action : list) cells.push_back(to_text(action));
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

Schedule from_csv(const std::string& name, const std::string& text) { return Reader(name, text).read(); }

Schedule read_csv(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("{}: cannot open: {}", path, std::strerror(errno));
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
    if (text.size() > kLargestFile) refuse("{}: is larger than 64 MiB", path);
  }
  if (in.bad()) refuse("{}: cannot read: {}", path, std::strerror(errno));
  return from_csv(path, text);
}

}  // namespace muster::sharding::pipeline
