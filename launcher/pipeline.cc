#include "launcher/pipeline.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "comm/base/error.h"
#include "comm/rendezvous/environment.h"
#include "launcher/arguments.h"
#include "sharding/pipeline/schedule/csv.h"
#include "sharding/pipeline/schedule/picture.h"
#include "sharding/pipeline/schedule/validator.h"

namespace muster::launcher {
namespace {

using namespace sharding::pipeline;

constexpr const char* kHelp = R"(muster pipeline --stages P --micro-batches M [options]
muster pipeline --csv FILE [options]

Makes or reads a pipeline schedule, checks that it is complete and cannot deadlock, and shows what each rank does when.

  --schedule NAME         gpipe, 1f1b, interleaved-1f1b or zbv (default 1f1b)
  --stages P              pipeline ranks
  --micro-batches M       of one step
  --chunks V              stages a rank (default 1; interleaved-1f1b and zbv 2)
  --csv FILE              read the schedule: a row a rank, a cell an action (0F0, 0B0, 1RECV_F0, ...)
  --forward T             how long a stage's forward takes, in any unit (default 1)
  --backward-input T      ... the backward's part for the input (default 1)
  --backward-weight T     ... the backward's part for the weights (default 1)
  --message T             ... a message takes to arrive (default 0)
  --max-live N            refuse where a rank keeps activations of more micro-batches x stages at once
  --svg FILE              write the picture
  --write-csv FILE        write the schedule, messages included
  --json                  print one JSON object instead of the grid

Bubble: idle time by the time of the work alone. Idle: the same by the whole step. Formats: docs/pipeline.md.
)";

constexpr double kLongest = 1e9;

int number(const std::string& where, const std::string& text) {
  return static_cast<int>(comm::parse_number(where, text, 1, kMostCells));
}

double duration(const std::string& where, const std::string& text, bool may_be_zero) {
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size() && value <= kLongest &&
                    (value >= 1e-9 || (may_be_zero && value == 0));
  if (!good) refuse("{}: found '{}', wanted a time from {} to 1e9", where, text, may_be_zero ? "0" : "1e-9");
  return value;
}

std::string file_name(const std::string& where, const std::string& text) {
  if (text.empty()) refuse("{}: found no name of a file", where);
  return text;
}

using Setter = std::function<void(PipelineOptions&, const std::string& where, const std::string& value)>;

const std::map<std::string, Setter>& valued_options() {
  static const std::map<std::string, Setter> all = {
      {"--schedule", [](auto& o, auto&, auto& v) { o.schedule.name = v, o.schedule_given = true; }},
      {"--stages", [](auto& o, auto& where, auto& v) { o.schedule.ranks = number(where, v), o.schedule_given = true; }},
      {"--micro-batches",
       [](auto& o, auto& where, auto& v) { o.schedule.micro_batches = number(where, v), o.schedule_given = true; }},
      {"--chunks", [](auto& o, auto& where, auto& v) { o.schedule.chunks = number(where, v), o.schedule_given = true; }},
      {"--csv", [](auto& o, auto& where, auto& v) { o.csv = file_name(where, v); }},
      {"--forward", [](auto& o, auto& where, auto& v) { o.costs.forward = duration(where, v, false); }},
      {"--backward-input", [](auto& o, auto& where, auto& v) { o.costs.backward_input = duration(where, v, false); }},
      {"--backward-weight", [](auto& o, auto& where, auto& v) { o.costs.backward_weight = duration(where, v, true); }},
      {"--message", [](auto& o, auto& where, auto& v) { o.costs.message = duration(where, v, true); }},
      {"--max-live", [](auto& o, auto& where, auto& v) { o.most_live = number(where, v); }},
      {"--svg", [](auto& o, auto& where, auto& v) { o.svg = file_name(where, v); }},
      {"--write-csv", [](auto& o, auto& where, auto& v) { o.write_csv = file_name(where, v); }},
  };
  return all;
}

[[noreturn]] void unknown(const std::string& word) {
  std::vector<std::string> known{"--json", "--help"};
  for (const auto& [name, setter] : valued_options()) known.push_back(name);
  const std::string hint = nearest(word, known);
  refuse("command line: unknown {} '{}'{}", word.starts_with("-") ? "option" : "word", word,
         hint.empty() ? "; see muster pipeline --help" : ", did you mean " + hint + "?");
}

void check_source(const PipelineOptions& o) {
  if (o.help) return;
  if (!o.csv.empty() && o.schedule_given)
    refuse("--csv: the file says which schedule it is; leave out --schedule, --stages, --micro-batches, --chunks");
  if (o.csv.empty() && o.schedule.ranks == 0) refuse("--stages: missing, wanted --stages and --micro-batches, or --csv");
  if (o.csv.empty() && o.schedule.micro_batches == 0) refuse("--micro-batches: missing, wanted the number of one step");
}

std::string report_json(const Schedule& s, const Timeline& t) {
  nlohmann::ordered_json out{{"schedule", s.name},
                             {"ranks", s.ranks},
                             {"chunks", s.chunks},
                             {"micro_batches", s.micro_batches},
                             {"step", t.step},
                             {"bubble", t.bubble()},
                             {"idle_share", t.idle_share()},
                             {"peak_activations", peak_live_activations(s)},
                             {"rank_of_stage", s.rank_of_stage},
                             {"actions", nlohmann::json::array()}};
  for (const auto& list : s.actions) {
    std::vector<std::string> cells;
    for (const Action& action : list) cells.push_back(to_text(action));
    out["actions"].push_back(cells);
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string counted(int n, const std::string& one, const char* ending = "s") {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : ending);
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  if (!out) refuse("{}: cannot write {}: {}", option, path, std::strerror(errno));
}

}  // namespace

PipelineOptions parse_pipeline_options(const std::vector<std::string>& words) {
  PipelineOptions options;
  options.schedule.ranks = options.schedule.micro_batches = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const auto found = valued_options().find(name);
    if (found != valued_options().end()) {
      if (equals == std::string::npos && i + 1 == words.size()) refuse("{}: needs a value", name);
      found->second(options, name, equals != std::string::npos ? words[i].substr(equals + 1) : words[++i]);
    } else if (words[i] == "--json") {
      options.json = true;
    } else if (words[i] == "--help" || words[i] == "-h") {
      options.help = true;
    } else {
      unknown(words[i]);
    }
  }
  check_source(options);
  return options;
}

std::string pipeline_report(const Schedule& s, const PipelineOptions& options) {
  const Timeline t = simulate(s, options.costs);
  if (options.json) return report_json(s, t);
  const Costs& c = options.costs;
  return fmt::format("{}: {}, {}, {} a rank; complete, cannot deadlock\n\n{}\n", s.name, counted(s.ranks, "rank"),
                     counted(s.micro_batches, "micro-batch", "es"), counted(s.chunks, "chunk"), to_text_grid(s, t, c)) +
         fmt::format("step              {:.6g}  (forward {:.6g}, backward {:.6g} + {:.6g}, message {:.6g})\n", t.step, c.forward,
                     c.backward_input, c.backward_weight, c.message) +
         fmt::format("bubble            {:.1f} %  of the work alone\n", 100 * t.bubble()) +
         fmt::format("idle              {:.1f} %  of the step\n", 100 * t.idle_share()) +
         fmt::format("peak activations  {}  by rank, in micro-batches x stages\n", fmt::join(peak_live_activations(s), " "));
}

int pipeline(const std::vector<std::string>& words) {
  const PipelineOptions options = parse_pipeline_options(words);
  if (options.help) {
    std::fputs(kHelp, stdout);
    return kExitOk;
  }
  const Schedule schedule = options.csv.empty() ? make_schedule(options.schedule) : read_csv(options.csv);
  check_valid(schedule, options.most_live);
  if (!options.svg.empty()) write_file("--svg", options.svg, to_svg(schedule, simulate(schedule, options.costs), options.costs));
  if (!options.write_csv.empty()) write_file("--write-csv", options.write_csv, to_csv(schedule));
  std::fputs(pipeline_report(schedule, options).c_str(), stdout);
  return kExitOk;
}

}  // namespace muster::launcher
