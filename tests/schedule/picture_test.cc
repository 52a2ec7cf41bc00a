#include "sharding/pipeline/schedule/picture.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string grid(const ScheduleRequest& request, const Costs& costs = {}) {
  const Schedule s = make_schedule(request);
  return to_text_grid(s, simulate(s, costs), costs);
}

std::string svg(const Schedule& s, const Costs& costs = {}) { return to_svg(s, simulate(s, costs), costs); }

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Picture, Grid) {
  EXPECT_EQ(grid({"1f1b", 2, 2}),
            "rank 0  F0 F1 .  .  B0 -- .  B1 --\n"
            "rank 1  .  F0 B0 -- F1 B1 -- .  .\n");
}

TEST(Picture, GridNamesStagesWhereARankHasSeveral) {
  EXPECT_EQ(grid({"zbv", 2, 1}),
            "rank 0  0F0 .   .   3F0 3I0 3W0 .   0I0 0W0\n"
            "rank 1  .   1F0 2F0 .   .   2I0 1I0 1W0 2W0\n");
}

// Slots are as long as the weight part; what is longer covers one or two.
TEST(Picture, GridShowsEveryActionWhateverItsLength) {
  const std::string text = grid({"zbv", 3, 7}, {.forward = 1, .backward_input = 1.7, .backward_weight = 0.6});
  for (int stage = 0; stage < 6; ++stage)
    for (const char* kind : {"F", "I", "W"})
      for (int i = 0; i < 7; ++i) {
        const std::string cell = std::to_string(stage) + kind + std::to_string(i);
        EXPECT_EQ(count(text, cell), 1u) << cell << "\n" << text;
      }
}

TEST(Picture, GridStaysBounded) { EXPECT_LT(grid({"zbv", 2, 3}, {.backward_weight = 1e-6}).size(), 20000000u); }

TEST(Picture, SvgHasABoxForEachAction) {
  Schedule s = make_schedule({"interleaved-1f1b", 2, 4, 2});
  s.name = "<&>\n";
  const std::string text = svg(s);
  EXPECT_EQ(count(text, "<title>"), 2u * 2 * 4 * 2);
  EXPECT_THAT(text, HasSubstr("<title>rank 1: 3F0, 3 to 4</title>"));
  EXPECT_THAT(text, HasSubstr(">&lt;&amp;&gt;?: 2 ranks x 2 chunks, 4 micro-batches; bubble 12.5 %"));
  EXPECT_EQ(count(text, "<g>"), count(text, "</g>"));
  EXPECT_THAT(text, testing::EndsWith("</svg>\n"));
}

TEST(Picture, SvgLeavesOutLabelsThatDoNotFit) {
  const Schedule s = make_schedule({"1f1b", 1, 1});
  EXPECT_THAT(svg(s), HasSubstr(">F0</text>"));
  EXPECT_THAT(svg(s, {.forward = 1, .backward_input = 1e9}), Not(HasSubstr(">F0</text>")));
}

}  // namespace
}  // namespace muster::sharding::pipeline
