#include "sharding/pipeline/schedule/csv.h"

#include <random>

#include <gmock/gmock.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/generators.h"
#include "sharding/pipeline/schedule/validator.h"

namespace muster::sharding::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Reads, then validates, as every start does.
std::string refusal(const std::string& text) {
  try {
    check_valid(from_csv("plan.csv", text));
    return "accepted";
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string without(std::string text, const std::string& cell) {
  const size_t at = text.find(cell);
  return at == std::string::npos ? "no such cell" : text.erase(at, cell.size());
}

TEST(Csv, RoundTrip) {
  for (const auto& name : schedule_names()) {
    for (const int ranks : {1, 2, 4}) {
      for (const int micro_batches : {1, 3, 8}) {
        Schedule s = make_schedule({name, ranks, micro_batches});
        const Schedule read = from_csv(s.name, to_csv(s));
        EXPECT_EQ(read, s) << to_csv(s);
        EXPECT_TRUE(validate(read).ok());
      }
    }
  }
}

// As PyTorch writes schedules of computation alone: idle slots are empty cells, lines end in CR LF.
TEST(Csv, ComputationAlone) {
  const Schedule s = from_csv("plan.csv", "0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,\r\n");
  EXPECT_EQ(s.actions, make_schedule({"1f1b", 2, 2}).actions);
  EXPECT_EQ(s.micro_batches, 2);
  EXPECT_EQ(s.chunks, 1);
}

TEST(Csv, CommentsAndEmptyLines) {
  const Schedule s = from_csv("plan.csv", "# a V over two ranks\n\n0F0, 3F0, 3I0,3W0,0I0 ,0W0\n1F0,2F0,2I0,1I0,2W0,1W0");
  EXPECT_THAT(s.rank_of_stage, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(validate(s).reason, "");
}

TEST(Csv, RefusesCellsWithLineAndColumn) {
  EXPECT_THAT(refusal("0F0,0B0\n1F0,1X0\n"), StartsWith("plan.csv:2:5: found '1X0', wanted stage, kind and micro-batch as 0F0"));
  EXPECT_THAT(refusal("0F0,  F1\n"), StartsWith("plan.csv:1:7: found 'F1'"));
  for (const char* cell : {"0", "F", "0F", "0F-1", "-1F0", "0F0x", "0REDUCE_GRAD1", "\"0F0\"", "0f0", "99999999F0", "0F99999999",
                           "0RESHARD", "0F0;0F1"})
    EXPECT_THAT(refusal(std::string("0F0,") + cell + "\n"),
                StartsWith("plan.csv:1:5: found '" + std::string(cell) + "', wanted stage, kind"))
        << cell;
  EXPECT_THAT(refusal("0F9999999\n"), StartsWith("plan.csv:1:1: found '0F9999999', wanted stage and micro-batch below"));
  EXPECT_THAT(refusal(std::string("\x1b[31m\0\xff", 7)), StartsWith("plan.csv:1:1: found '?[31m?\?', wanted"));
  EXPECT_THAT(refusal(std::string(1000, 'x')), HasSubstr("x...'"));
}

TEST(Csv, RefusesPlacements) {
  EXPECT_THAT(refusal("0F0,0B0\n1F0,0B0\n"),
              StartsWith("plan.csv:2:5: found '0B0' on rank 1, wanted stage 0 on rank 0 alone, which has it in line 1"));
  EXPECT_EQ(refusal(""), "plan.csv: found no row, wanted one a rank");
  EXPECT_EQ(refusal("0F0,0B0,2F0,2B0\n"), "plan.csv: found no action of stage 1, wanted all of stages 0 to 2");
  EXPECT_EQ(refusal("0F0,0B0,1F0,1B0\n2F0,2B0\n"), "plan.csv: found 3 stages on 2 ranks, wanted the same number on each");
  EXPECT_EQ(refusal("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0\n"), "plan.csv: rank 0: found 3 stages, wanted 2");
}

TEST(Csv, RefusesMissingReceive) {
  const std::string right = to_csv(make_schedule({"1f1b", 3, 4}));
  EXPECT_EQ(refusal(without(right, "1RECV_F2,")), "plan.csv: rank 1: found no 1RECV_F2; rank 0 sends it (0SEND_F2)");
  EXPECT_EQ(refusal(without(right, "1SEND_B3,")), "plan.csv: rank 1: found no 1SEND_B3; rank 0 waits for it (0RECV_B3)");
  EXPECT_EQ(refusal(without(right, "2B1,")), "plan.csv: rank 2: found no 2B1; wanted each micro-batch on each stage");
}

// Each rank wants the other's message first.
TEST(Csv, RefusesCycle) {
  const std::string text =
      "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  EXPECT_EQ(refusal(text),
            "plan.csv: rank 0, action 3 (0RECV_B0): deadlock: waits for rank 1, which waits at action 3 (1RECV_F1) for rank 0");
}

// A few bytes of a right schedule changed: still right, or refused on one line.
TEST(Csv, AnyBytesAreSafe) {
  std::mt19937 random(7);
  const std::string letters = "0123456789FBIWSENDRCV_,\n\r #\"-x";
  int right = 0, refused = 0;
  for (int n = 0; n < 3000; ++n) {
    std::string text = to_csv(make_schedule({n % 2 == 0 ? "zbv" : "1f1b", 1 + n % 3, 1 + n % 4}));
    for (int changes = 0; changes < 1 + n % 3; ++changes) text[random() % text.size()] = letters[random() % letters.size()];
    const std::string reason = refusal(text);
    (reason == "accepted" ? right : refused) += 1;
    EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
  }
  EXPECT_GT(right, 10);
  EXPECT_GT(refused, 1000);
}

TEST(Csv, RefusesFilesThatCannotBeRead) {
  const auto reading = [](const char* path) {
    try {
      read_csv(path);
      return std::string("accepted");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(reading("/no/such/file.csv"), "/no/such/file.csv: cannot open: No such file or directory");
  EXPECT_EQ(reading("/"), "/: cannot read: Is a directory");
}

}  // namespace
}  // namespace muster::sharding::pipeline
