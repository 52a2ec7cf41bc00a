// The numeric contract of data parallelism: any number of ranks trains the same model.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/training/trained.h"

namespace muster::worker {
namespace {

using testing::bit_equal;
using testing::hashed_dataset;
using testing::largest_difference;
using testing::run_ranks;
using testing::small_config;
using testing::train;
using testing::Trained;

struct Layout {
  int ranks;
  int64_t accumulation;
  bool tied, dropout, bias, clip;
  int zero = 0;
};
std::ostream& operator<<(std::ostream& out, const Layout& l) {
  return out << l.ranks << "ranks_x" << l.accumulation << (l.tied ? "_tied" : "_untied") << (l.dropout ? "_dropout" : "")
             << (l.bias ? "_bias" : "") << (l.clip ? "_clip" : "") << (l.zero ? "_zero1" : "");
}

RunConfig config_of(const Layout& l) {
  RunConfig c = small_config(l.ranks, 12, l.accumulation);
  c.untie_embeddings_and_output_weights = !l.tied;
  c.hidden_dropout = c.attention_dropout = l.dropout ? 0.2 : 0.0;
  c.add_bias_linear = l.bias;
  c.clip_grad = l.clip ? 0.1 : 0.0;
  c.zero_stage = l.zero;
  return c;
}

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, EqualsOneProcessInFloat64) {
  const Layout layout = GetParam();
  Layout single = layout;
  single.ranks = 1;
  single.accumulation = 1;
  single.zero = 0;
  const Trained one = train(1, config_of(single)), many = train(layout.ranks, config_of(layout));
  EXPECT_LT(largest_difference(one, many), 1e-10);
  EXPECT_TRUE(many.ranks_agree);
  EXPECT_NEAR(one.val_loss, many.val_loss, 1e-10);
  ASSERT_EQ(one.losses.size(), many.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(one.losses[i], many.losses[i], 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Numbers, EveryLayout,
                         ::testing::Values(Layout{1, 3, true, false, false, true}, Layout{2, 1, true, false, false, true},
                                           Layout{3, 1, true, false, false, true}, Layout{4, 1, true, false, false, true},
                                           Layout{2, 3, true, true, true, true}, Layout{3, 2, false, true, false, false},
                                           Layout{4, 3, false, false, true, false}, Layout{2, 2, true, true, false, false},
                                           Layout{1, 2, false, true, true, true}, Layout{1, 1, true, false, false, true, 1},
                                           Layout{2, 1, true, false, false, true, 1}, Layout{3, 2, true, true, true, true, 1},
                                           Layout{4, 3, false, true, true, true, 1}, Layout{3, 1, false, false, true, false, 1}),
                         ::testing::PrintToStringParamName());

TEST(NumericContract, TrainingMovesTheParameters) {
  RunConfig c = small_config(1);
  const Trained trained = train(1, c);
  c.train_iters = 1;
  EXPECT_GT(largest_difference(trained, train(1, c)), 1e-3);
  EXPECT_LT(trained.losses.back(), trained.losses.front());
}

TEST(NumericContract, SameLayoutTwiceIsBitEqual) {
  for (const int ranks : {1, 2, 3, 4}) {
    RunConfig c = small_config(ranks);
    c.precision = "fp32";
    c.hidden_dropout = c.attention_dropout = 0.1;
    EXPECT_TRUE(bit_equal(train(ranks, c), train(ranks, c))) << ranks;
  }
}

TEST(NumericContract, OverlapOnAndOffAreBitEqual) {
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      RunConfig c = small_config(ranks, 12, 1);
      c.precision = "fp32";
      c.zero_stage = stage;
      c.first_bucket_size_mb = 0.001;  // many buckets
      c.reduce_bucket_size_mb = 0.002;
      RunConfig off = c;
      off.overlap_grad_reduce = false;
      EXPECT_TRUE(bit_equal(train(ranks, c), train(ranks, off))) << ranks << " ranks, stage " << stage;
    }
  }
}

TEST(NumericContract, ZeroOneKeepsAShareOfTheStateAndMovesNoMoreBytes) {
  const Dataset data = hashed_dataset();
  for (const int ranks : {2, 3, 4}) {
    std::array<int64_t, 2> state_bytes{}, moved_bytes{};
    for (const int stage : {0, 1}) {
      RunConfig c = small_config(ranks);
      c.zero_stage = stage;
      c.train_iters = 1;
      run_ranks(ranks, [&](comm::Rendezvous& rendezvous, comm::Communicator& communicator) {
        Trainer trainer(c, data, rendezvous, communicator, at::Device(at::kCPU));
        trainer.run(nullptr);
        if (communicator.rank() != 0) return;
        const auto bytes = communicator.counters().bytes;
        const auto of = [&](comm::OpKind kind) { return bytes[static_cast<size_t>(kind)]; };
        const int64_t buffer = trainer.flat().partition().size() * 8;
        state_bytes[stage] = trainer.optimizer().state_bytes();
        EXPECT_EQ(state_bytes[stage], 2 * buffer / (stage ? ranks : 1));
        // An all-reduce counts its tensor once and moves it twice; small ones for totals, norm and evaluation come on top.
        moved_bytes[stage] = 2 * of(comm::OpKind::kAllReduce) + of(comm::OpKind::kReduceScatter) + of(comm::OpKind::kAllGather);
        EXPECT_GE(moved_bytes[stage], 2 * buffer);
        EXPECT_LE(moved_bytes[stage], 2 * buffer + 512);
      });
    }
    EXPECT_LT(state_bytes[1], state_bytes[0]);
  }
}

TEST(NumericContract, UnevenEvaluationsAreTheSameMeanOnAnyLayout) {
  RunConfig c = small_config(1);
  c.eval_iters = 0;  // 62 sequences in batches of 12, 6, 4 or 3: some ranks have one batch less
  c.train_iters = 2;
  const double wanted = train(1, c).val_loss;
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 1, 3}) {
      RunConfig many = small_config(ranks);
      many.eval_iters = 0;
      many.train_iters = 2;
      many.zero_stage = stage;
      EXPECT_NEAR(train(ranks, many).val_loss, wanted, 1e-12) << ranks << " ranks, stage " << stage;
    }
  }
}

TEST(NumericContract, BucketSizesDoNotChangeTheModel) {
  RunConfig small = small_config(3);
  small.first_bucket_size_mb = 0.0005;
  small.reduce_bucket_size_mb = 0.001;
  EXPECT_LT(largest_difference(train(3, small_config(3)), train(3, small)), 1e-12);
}

TEST(NumericContract, ThreadsOfARankDoNotChangeABit) {
  RunConfig c = small_config(1);
  c.precision = "fp32";
  at::set_num_threads(1);
  const Trained one = train(1, c);
  at::set_num_threads(2);
  const Trained two = train(1, c);
  at::set_num_threads(1);
  EXPECT_TRUE(bit_equal(one, two));
}

}  // namespace
}  // namespace muster::worker
