#include "sharding/pipeline/schedule/picture.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace muster::sharding::pipeline {
namespace {

constexpr double kMostCells = 1 << 20;  // of a text grid
constexpr double kLeastColumns = 256;

constexpr double kBoxWidth = 26, kMostWidth = 16000;  // pixels: of the shortest action, of all
constexpr double kRowHeight = 26, kLeft = 64, kTop = 40, kMargin = 12;
constexpr double kLabelWidth = 7;  // pixels a letter

// The shortest action that takes any time; 1 where none does.
double shortest(const Schedule& s, const Costs& costs) {
  double least = 0;
  for (const auto& list : s.actions) {
    for (const Action& a : list) {
      const double cost = cost_of(costs, a.kind);
      if (cost > 0 && (least == 0 || cost < least)) least = cost;
    }
  }
  return least > 0 ? least : 1;
}

std::string label(const Schedule& s, Action a) {
  const std::string text = to_text(a);
  return s.chunks > 1 ? text : text.substr(text.find_first_not_of("0123456789"));
}

// What is drawn of one rank: actions that take time.
struct Box {
  const Action* action;
  Span span;
};

std::vector<Box> boxes(const Schedule& s, const Timeline& t, const Costs& costs, int rank) {
  std::vector<Box> out;
  for (size_t i = 0; i < s.actions[rank].size(); ++i)
    if (cost_of(costs, s.actions[rank][i].kind) > 0) out.push_back({&s.actions[rank][i], t.spans[rank][i]});
  return out;
}

// A slot shows what runs at its middle: every action of a slot's length or more shows once at least.
std::vector<std::string> row_cells(const Schedule& s, const std::vector<Box>& boxes, double slot, int columns) {
  std::vector<std::string> cells;
  size_t next = 0;
  bool shown = false;
  for (int column = 0; column < columns; ++column) {
    const double middle = (column + 0.5) * slot;
    for (; next < boxes.size() && boxes[next].span.end <= middle; ++next) shown = false;
    const bool busy = next < boxes.size() && boxes[next].span.begin <= middle;
    cells.push_back(!busy ? "." : shown ? "--" : label(s, *boxes[next].action));
    shown = busy;
  }
  return cells;
}

// [stage] how many stages of its rank come before it.
std::vector<int> chunks_of_stages(const Schedule& s) {
  std::vector<int> held(s.ranks), out;
  for (const int rank : s.rank_of_stage) out.push_back(held[rank]++);
  return out;
}

const char* colour(Kind kind, int chunk) {
  constexpr const char* kForward[] = {"#c6dbef", "#9ecae1", "#6baed6", "#4292c6"};
  constexpr const char* kBackward[] = {"#fdd0a2", "#fdae6b", "#fd8d3c", "#f16913"};
  constexpr const char* kWeight[] = {"#c7e9c0", "#a1d99b", "#74c476", "#41ab5d"};
  const int shade = std::min(chunk, static_cast<int>(std::size(kForward)) - 1);
  return (kind == Kind::kForward ? kForward : kind == Kind::kBackwardWeight ? kWeight : kBackward)[shade];
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  }
  return out;
}

std::string caption(const Schedule& s, const Timeline& t) {
  return fmt::format("{}: {} ranks x {} chunks, {} micro-batches; bubble {:.1f} %, idle {:.1f} % of the step", escaped(s.name),
                     s.ranks, s.chunks, s.micro_batches, 100 * t.bubble(), 100 * t.idle_share());
}

std::string svg_box(const Schedule& s, const Box& box, int rank, double scale, const char* fill) {
  const double x = kLeft + box.span.begin * scale, y = kTop + rank * kRowHeight;
  const double width = (box.span.end - box.span.begin) * scale;
  const std::string text = label(s, *box.action);
  std::string out = fmt::format("<g><title>rank {}: {}, {:.6g} to {:.6g}</title>", rank, to_text(*box.action), box.span.begin,
                                box.span.end);
  out += fmt::format(R"(<rect x="{:.2f}" y="{:.0f}" width="{:.2f}" height="{:.0f}" fill="{}" stroke="white"/>)", x, y, width,
                     kRowHeight - 2, fill);
  if (static_cast<double>(text.size()) * kLabelWidth <= width)
    out += fmt::format(R"(<text x="{:.2f}" y="{:.0f}" text-anchor="middle">{}</text>)", x + width / 2, y + 16, text);
  return out + "</g>\n";
}

}  // namespace

std::string to_text_grid(const Schedule& s, const Timeline& t, const Costs& costs) {
  const double most_columns = std::max(kLeastColumns, kMostCells / s.ranks);
  const double slot = std::max(shortest(s, costs), t.step / most_columns);
  const int columns = static_cast<int>(t.step / slot + 0.5);
  std::vector<std::vector<std::string>> rows;
  size_t width = 1;
  for (int rank = 0; rank < s.ranks; ++rank) {
    rows.push_back(row_cells(s, boxes(s, t, costs, rank), slot, columns));
    for (const auto& cell : rows.back()) width = std::max(width, cell.size());
  }
  const size_t rank_width = std::to_string(s.ranks - 1).size();
  std::string out;
  for (int rank = 0; rank < s.ranks; ++rank) {
    std::string line = fmt::format("rank {:>{}} ", rank, rank_width);
    for (const auto& cell : rows[rank]) line += fmt::format(" {:<{}}", cell, width);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string to_svg(const Schedule& s, const Timeline& t, const Costs& costs) {
  const double scale = std::min(kBoxWidth / shortest(s, costs), kMostWidth / std::max(t.step, 1e-9));
  const double width = kLeft + t.step * scale + kMargin, height = kTop + s.ranks * kRowHeight + kMargin;
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}")", width, height);
  out += " font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  out += fmt::format(R"(<text x="{:.0f}" y="22" font-size="13">{}</text>)"
                     "\n",
                     kMargin, caption(s, t));
  const auto chunks = chunks_of_stages(s);
  for (int rank = 0; rank < s.ranks; ++rank) {
    const double top = kTop + rank * kRowHeight;
    out += fmt::format(R"(<text x="{:.0f}" y="{:.0f}">rank {}</text>)", kMargin, top + 16, rank);
    out += fmt::format(R"(<rect x="{:.0f}" y="{:.0f}" width="{:.2f}" height="{:.0f}" fill="#eeeeee"/>)"
                       "\n",
                       kLeft, top, t.step * scale, kRowHeight - 2);
    for (const Box& box : boxes(s, t, costs, rank))
      out += svg_box(s, box, rank, scale, colour(box.action->kind, chunks[box.action->stage]));
  }
  return out + "</svg>\n";
}

}  // namespace muster::sharding::pipeline
