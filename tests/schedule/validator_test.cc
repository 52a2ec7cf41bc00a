#include "sharding/pipeline/schedule/validator.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/complete.h"
#include "sharding/pipeline/schedule/generators.h"

namespace muster::sharding::pipeline {
namespace {

using testing::HasSubstr;

std::string where(const Verdict& verdict) { return std::to_string(verdict.rank) + "/" + std::to_string(verdict.index); }

int index_of(const Schedule& s, int rank, const std::string& text) {
  for (size_t i = 0; i < s.actions[rank].size(); ++i)
    if (to_text(s.actions[rank][i]) == text) return static_cast<int>(i);
  return -1;
}

void swap_actions(Schedule& s, int rank, const std::string& a, const std::string& b) {
  std::swap(s.actions[rank].at(index_of(s, rank, a)), s.actions[rank].at(index_of(s, rank, b)));
}

// What a pipeline does, written a second time and without a graph: ranks take turns at random, values are sets of what each
// rank holds, and a message is a thing in a queue. True where all ranks reach their ends with all work done.
class RandomRun {
 public:
  RandomRun(const Schedule& s, std::mt19937& random) : s_(s), random_(random), at_(s.ranks), held_(s.ranks) {}

  bool finishes() {
    while (true) {
      std::vector<int> can;
      for (int rank = 0; rank < s_.ranks; ++rank)
        if (!at_end(rank) && !waits(rank)) can.push_back(rank);
      if (can.empty()) break;
      const int rank = can[random_() % can.size()];
      if (!act(rank, s_.actions[rank][at_[rank]++])) return false;
    }
    for (int rank = 0; rank < s_.ranks; ++rank)
      if (!at_end(rank)) return false;
    return done_ == s_.stages() * s_.micro_batches && reduced_ == s_.stages() && in_flight() == 0;
  }

 private:
  using Value =
      std::tuple<char, int, int>;  // x: input of a stage, y: its forward is done, g: gradient of its output, i: its input part
  bool at_end(int rank) const { return at_[rank] == s_.actions[rank].size(); }
  bool known(int stage) const { return stage >= 0 && stage < s_.stages(); }
  bool here(int rank, int stage) const { return known(stage) && s_.rank_of_stage[stage] == rank; }

  std::deque<Value>& queue(int from, int to, bool gradients) { return queues_[{from, to, gradients}]; }
  size_t in_flight() const {
    size_t n = 0;
    for (const auto& [channel, queue] : queues_) n += queue.size();
    return n;
  }
  std::deque<Value>* source(int rank, const Action& a) {
    if (a.kind == Kind::kRecvActivation && known(a.stage - 1)) return &queue(s_.rank_of_stage[a.stage - 1], rank, false);
    if (a.kind == Kind::kRecvGradient && known(a.stage + 1)) return &queue(s_.rank_of_stage[a.stage + 1], rank, true);
    return nullptr;
  }
  bool waits(int rank) {
    const auto* queue = source(rank, s_.actions[rank][at_[rank]]);
    return queue && queue->empty();
  }

  bool has(int rank, const Value& v) const { return held_[rank].contains(v); }
  bool take(int rank, const Value& v) { return held_[rank].erase(v) == 1; }
  bool put(int rank, const Value& v) { return held_[rank].insert(v).second; }

  bool act(int rank, const Action& a) {
    const int s = a.stage, i = a.micro_batch;
    if (!here(rank, s)) return false;
    switch (a.kind) {
      case Kind::kForward:
        if (s > 0 && !take(rank, {'x', s, i})) return false;
        if (s + 1 < s_.stages() && !put(rank, here(rank, s + 1) ? Value{'x', s + 1, i} : Value{'o', s, i})) return false;
        started_.insert(s);
        return unsharded_.contains(s) && once_.insert({'F', s, i}).second && put(rank, {'y', s, i});
      case Kind::kBackward:
        return input_part(rank, s, i) && weight_part(rank, s, i);
      case Kind::kBackwardInput:
        return input_part(rank, s, i);
      case Kind::kBackwardWeight:
        return weight_part(rank, s, i);
      case Kind::kSendActivation:
        if (!known(s + 1) || here(rank, s + 1) || !take(rank, {'o', s, i})) return false;
        queue(rank, s_.rank_of_stage[s + 1], false).push_back({'x', s + 1, i});
        return true;
      case Kind::kSendGradient:
        if (!known(s - 1) || here(rank, s - 1) || !take(rank, {'d', s, i})) return false;
        queue(rank, s_.rank_of_stage[s - 1], true).push_back({'g', s - 1, i});
        return true;
      case Kind::kRecvActivation:
        return receive(rank, a, {'x', s, i});
      case Kind::kRecvGradient:
        return receive(rank, a, {'g', s, i});
      case Kind::kReduce:
        return weights_[s] == s_.micro_batches && ++reduced_ <= s_.stages() && once_.insert({'R', s, 0}).second;
      case Kind::kUnshard:
        return !started_.contains(s) && unsharded_.insert(s).second;
    }
    return false;
  }

  bool receive(int rank, const Action& a, const Value& wanted) {
    auto* queue = source(rank, a);
    if (!queue || queue->front() != wanted) return false;
    queue->pop_front();
    return put(rank, wanted);
  }

  bool input_part(int rank, int s, int i) {
    if (!take(rank, {'y', s, i})) return false;
    if (s + 1 < s_.stages() && !take(rank, {'g', s, i})) return false;
    if (s > 0 && !put(rank, here(rank, s - 1) ? Value{'g', s - 1, i} : Value{'d', s, i})) return false;
    return put(rank, {'i', s, i});
  }
  bool weight_part(int rank, int s, int i) { return take(rank, {'i', s, i}) && ++weights_[s] && ++done_; }

  const Schedule& s_;
  std::mt19937& random_;
  std::vector<size_t> at_;
  std::vector<std::set<Value>> held_;
  std::map<std::tuple<int, int, bool>, std::deque<Value>> queues_;
  std::set<int> started_, unsharded_;
  std::set<Value> once_;
  std::map<int, int> weights_;
  int done_ = 0, reduced_ = 0;
};

Schedule random_schedule(std::mt19937& random) {
  const auto names = schedule_names();
  const std::string name = names[random() % names.size()];
  return make_schedule({name, 1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 8),
                        name == "zbv" ? 2 : 1 + static_cast<int>(random() % 3)});
}

// Half of the swaps are of neighbours, which leaves more schedules right; some are between ranks.
void swap_two(Schedule& s, std::mt19937& random) {
  auto& a = s.actions[random() % s.actions.size()];
  auto& b = random() % 10 == 0 ? s.actions[random() % s.actions.size()] : a;
  const size_t i = random() % a.size();
  const size_t j = random() % 2 == 0 ? (i + 1) % b.size() : random() % b.size();
  std::swap(a[i], b[j % b.size()]);
}

TEST(Validator, AgreesWithRandomRunsOnMutatedSchedules) {
  std::mt19937 random(20240117);
  int right = 0, refused = 0, deadlocks = 0;
  for (int n = 0; n < 10000; ++n) {
    Schedule s = random_schedule(random);
    swap_two(s, random);
    const Verdict verdict = validate(s);
    right += verdict.ok();
    refused += !verdict.ok();
    deadlocks += verdict.reason.find("deadlock") != std::string::npos;
    for (int run = 0; run < 3; ++run)
      ASSERT_EQ(RandomRun(s, random).finishes(), verdict.ok())
          << s.name << " p " << s.ranks << " m " << s.micro_batches << ": " << verdict.reason;
  }
  EXPECT_GT(right, 1000);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(deadlocks, 20);
}

TEST(Validator, NamesRankAndActionOfWrongOrder) {
  Schedule s = make_schedule({"1f1b", 2, 2});
  swap_actions(s, 1, "1RECV_F1", "1F1");
  const Verdict verdict = validate(s);
  EXPECT_EQ(verdict.reason, "rank 1, action 5 (1F1): wanted 1RECV_F1 before it, found it after");
  EXPECT_EQ(where(verdict), "1/5");
}

TEST(Validator, OrderOfTheWork) {
  Schedule s = make_schedule({"zbv", 1, 1});
  swap_actions(s, 0, "0F0", "1UNSHARD");  // 0UNSHARD 1UNSHARD 0F0 1F0 1I0 0I0 ...
  const auto refusal = [&](const std::string& a, const std::string& b) {
    Schedule mutated = s;
    swap_actions(mutated, 0, a, b);
    return validate(mutated).reason;
  };
  EXPECT_THAT(refusal("0F0", "1F0"), HasSubstr("(1F0): wanted 0F0 before it"));
  EXPECT_THAT(refusal("1I0", "0I0"), HasSubstr("(0I0): wanted 1I0 before it"));
  EXPECT_THAT(refusal("0I0", "0W0"), HasSubstr("(0W0): wanted 0I0 before it"));
  EXPECT_THAT(refusal("1F0", "1I0"), HasSubstr("(1I0): wanted 1F0 before it"));
  EXPECT_THAT(refusal("0W0", "0REDUCE_GRAD"),
              HasSubstr("(0REDUCE_GRAD): found 0 micro-batches' gradients before it, wanted all 1"));
  EXPECT_THAT(refusal("0UNSHARD", "0F0"), HasSubstr("(0F0): wanted 0UNSHARD before it"));
}

TEST(Validator, SendOfWhatIsNotThere) {
  Schedule s = make_schedule({"1f1b", 2, 2});
  swap_actions(s, 1, "1B0", "1SEND_B0");
  EXPECT_EQ(validate(s).reason, "rank 1, action 3 (1SEND_B0): wanted 1B0 before it, found it after");
}

TEST(Validator, OrderOfAChannel) {
  Schedule s = make_schedule({"gpipe", 2, 2});
  swap_actions(s, 0, "0SEND_F0", "0SEND_F1");
  swap_actions(s, 0, "0F0", "0F1");
  EXPECT_EQ(validate(s).reason,
            "rank 1, action 1 (1RECV_F0): the message that is due from rank 0 is its action 2 (0SEND_F1); wanted them sent and "
            "received in one order");
}

// The order in which a rank needs its inputs need not be the order in which they are made.
TEST(Validator, ReceivesAreMovedUpWhereTheChannelAsksForIt) {
  Schedule s{"own", 2, 2, 1, {0, 1}, {}};
  s.actions = {{{Kind::kForward, 0, 0}, {Kind::kForward, 0, 1}, {Kind::kBackward, 0, 0}, {Kind::kBackward, 0, 1}},
               {{Kind::kForward, 1, 1}, {Kind::kForward, 1, 0}, {Kind::kBackward, 1, 1}, {Kind::kBackward, 1, 0}}};
  complete(s);
  EXPECT_EQ(validate(s).reason, "");
  EXPECT_LT(index_of(s, 1, "1RECV_F0"), index_of(s, 1, "1RECV_F1"));
  EXPECT_LT(index_of(s, 0, "0RECV_B1"), index_of(s, 0, "0RECV_B0"));
}

TEST(Validator, Counts) {
  const Schedule right = make_schedule({"1f1b", 2, 2});
  Schedule s = right;
  s.actions[0].push_back({Kind::kForward, 0, 1});
  EXPECT_THAT(validate(s).reason, HasSubstr("(0F1): found a second time, wanted once"));
  s = right;
  s.actions[0].push_back({Kind::kBackwardWeight, 0, 1});
  EXPECT_EQ(validate(s).reason, "rank 0: found 0B1 and 0W1, wanted the whole backward or its parts");
  s = right;
  s.actions[1].pop_back();
  EXPECT_EQ(validate(s).reason, "rank 1: found no 1REDUCE_GRAD; wanted one a stage");
  s = make_schedule({"zbv", 2, 2});
  s.actions[1].erase(s.actions[1].begin() + index_of(s, 1, "2W1"));
  EXPECT_EQ(validate(s).reason, "rank 1: found no 2W1; wanted both parts of the backward");
}

TEST(Validator, AnyContentIsSafe) {
  const Schedule right = make_schedule({"1f1b", 2, 2});
  for (const Action& action : {Action{Kind::kForward, -1, 0},
                               {Kind::kForward, 2, 0},
                               {Kind::kForward, 1, 0},
                               {Kind::kForward, 0, -1},
                               {Kind::kForward, 0, 2},
                               {Kind::kReduce, 0, 0},
                               {Kind::kSendGradient, 0, 0}}) {
    Schedule s = right;
    s.actions[0][1] = action;
    EXPECT_THAT(validate(s).reason, HasSubstr("rank 0, action 1 (")) << to_text(action);
  }
  Schedule s = right;
  s.rank_of_stage = {0, 7};
  EXPECT_EQ(validate(s).reason, "rank 1: found 0 stages, wanted 1");
  s.actions.clear();
  EXPECT_FALSE(validate(s).ok());
  EXPECT_FALSE(validate({}).ok());
  s = make_schedule({"zbv", 2, 1});
  s.actions[1].push_back({Kind::kSendActivation, 1, 0});
  EXPECT_THAT(validate(s).reason, HasSubstr("(1SEND_F0): stage 2 is on this rank too, wanted no message"));
}

TEST(Validator, Memory) {
  const Schedule s = make_schedule({"1f1b", 4, 8});
  EXPECT_TRUE(validate(s, 4).ok());
  EXPECT_EQ(validate(s, 3).reason, "rank 0: found 4 live activations at the peak, wanted at most 3");
  EXPECT_THROW(check_valid(s, 3), InputError);
}

}  // namespace
}  // namespace muster::sharding::pipeline
