// Layout x feature against one process. A part runs on every test run (MUSTER_MATRIX unset); all of it with MUSTER_MATRIX=all
// (ctest label "slow", scripts/test --all).

#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/training/trained.h"

namespace muster::worker {
namespace {

using namespace testing;

struct Cell {
  int stage = 0, ranks = 1, shard_size = 0;  // shard_size > 0: hybrid
  int64_t accumulation = 1;
  std::string recompute = "none";
  bool clip = false, tied = true, dropout = false;
  auto operator<=>(const Cell&) const = default;
};

std::string text(const Cell& c) {
  return fmt::format("stage {} ranks {} shard {} accumulation {} recompute {} {}{}{}", c.stage, c.ranks, c.shard_size, c.accumulation, c.recompute,
                     c.clip ? "clip " : "", c.tied ? "tied " : "untied ", c.dropout ? "dropout" : "");
}

RunConfig config_of(const Cell& cell, const std::string& precision) {
  RunConfig c = small_config(cell.ranks, 36, cell.accumulation);
  c.precision = precision;
  c.zero_stage = cell.stage;
  c.zero_shard_size = cell.shard_size;
  c.recompute_granularity = cell.recompute;
  c.clip_grad = cell.clip ? 0.1 : 0.0;
  c.untie_embeddings_and_output_weights = !cell.tied;
  c.hidden_dropout = c.attention_dropout = cell.dropout ? 0.1 : 0.0;
  c.add_bias_linear = cell.accumulation == 3;  // biases come along without a dimension of their own
  c.first_bucket_size_mb = 0.001;              // several buckets
  c.reduce_bucket_size_mb = 0.004;
  c.log_interval = 1;
  return c;
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  const std::vector<std::tuple<int, int>> shardings = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {1, 2}, {2, 2}, {3, 2}};
  for (const auto& [stage, shard] : shardings) {
    for (const int ranks : {1, 2, 3, 4}) {
      if (shard > 0 && (ranks % shard != 0 || ranks == shard)) continue;
      for (const int64_t accumulation : {1, 3}) {
        for (const char* recompute : {"none", "selective", "full"}) {
          for (int bits = 0; bits < 8; ++bits) cells.push_back({stage, ranks, shard, accumulation, recompute, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
        }
      }
    }
  }
  return cells;
}

bool everything() {
  const char* wanted = std::getenv("MUSTER_MATRIX");
  return wanted && std::string_view(wanted) == "all";
}

// Every 41st: coprime to all dimensions, so that each value of each meets most others.
std::vector<Cell> cells() {
  const auto all = all_cells();
  if (everything()) return all;
  std::vector<Cell> part;
  for (size_t i = 5; i < all.size(); i += 41) part.push_back(all[i]);
  return part;
}

// One process with the same features; the same for all layouts.
const Trained& single_process(const Cell& cell, const std::string& precision, int64_t steps) {
  static std::map<std::string, Trained> known;
  Cell single;
  single.clip = cell.clip, single.tied = cell.tied, single.dropout = cell.dropout;
  RunConfig c = config_of(single, precision);
  c.add_bias_linear = cell.accumulation == 3;
  c.train_iters = c.lr_decay_iters = steps;
  const std::string key = fmt::format("{} {} {} {}", text(single), c.add_bias_linear, precision, steps);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, train(1, c)).first->second;
}

TEST(LayoutMatrix, EqualsOneProcessInFloat64) {
  for (const Cell& cell : cells()) {
    const Trained& one = single_process(cell, "fp64", 20);
    const Trained many = train(cell.ranks, config_of(cell, "fp64"));
    EXPECT_LT(largest_difference(one, many), 1e-10) << text(cell);
    EXPECT_TRUE(many.ranks_agree) << text(cell);
    EXPECT_NEAR(one.val_loss, many.val_loss, 1e-10) << text(cell);
    ASSERT_EQ(one.losses.size(), many.losses.size()) << text(cell);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      ASSERT_NEAR(one.losses[i], many.losses[i], 1e-10) << text(cell) << " step " << i;
      ASSERT_NEAR(one.norms[i], many.norms[i], 1e-10) << text(cell) << " step " << i;
    }
  }
}

TEST(LayoutMatrix, OverlapOnAndOffAndTwiceAreBitEqual) {
  for (const Cell& cell : cells()) {
    if (cell.ranks == 1 || cell.clip) continue;
    RunConfig c = config_of(cell, "fp32");
    c.train_iters = 5;
    const Trained first = train(cell.ranks, c);
    EXPECT_TRUE(bit_equal(first, train(cell.ranks, c))) << text(cell);
    EXPECT_TRUE(bit_equal(first, train(cell.ranks, c, true))) << text(cell) << " delayed";
    c.overlap_grad_reduce = false;
    EXPECT_TRUE(bit_equal(first, train(cell.ranks, c))) << text(cell);
  }
}

TEST(LayoutMatrix, Float32FollowsOneProcessFor100Steps) {
  for (const Cell& cell : cells()) {
    if (cell.recompute != "none" || (cell.dropout && !everything())) continue;
    RunConfig many = config_of(cell, "fp32");
    many.train_iters = many.lr_decay_iters = 100;
    const Trained &a = single_process(cell, "fp32", 100), b = train(cell.ranks, many);
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (size_t i = 0; i < a.losses.size(); ++i) ASSERT_NEAR(a.losses[i], b.losses[i], 1e-5) << text(cell) << " step " << i;
  }
}

}  // namespace
}  // namespace muster::worker
