// The worker's end of the link; the test is the agent.

#include "comm/control/agent_link.h"

#include <cstdlib>
#include <random>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/bytes.h"
#include "comm/base/error.h"
#include "comm/control/frames.h"

namespace muster::comm {
namespace {

using testing::HasSubstr;

class AgentLink : public testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    agent_ = pair[0];
    worker_ = pair[1];
    set("MUSTER_AGENT_FD", worker_);
    set("MUSTER_RANK", 1);
    set("MUSTER_WORLD_SIZE", 2);
  }
  void TearDown() override {
    for (const char* name : {"MUSTER_AGENT_FD", "MUSTER_RANK", "MUSTER_WORLD_SIZE"}) unsetenv(name);
    close_agent();
    close(worker_);
  }
  static void set(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }
  void close_agent() {
    if (agent_ >= 0) close(agent_);
    agent_ = -1;
  }
  void answer(FrameType type, const std::string& body) { write_all(agent_, encode_frame(type, body), soon()); }
  static Deadline soon() { return Deadline::after(milliseconds(5000)); }
  std::optional<Frame> received() {
    read_available(agent_, reader_);
    return reader_.next();
  }
  std::string failure(Rendezvous& rendezvous, int ms = 5000) {
    try {
      (void)rendezvous.exchange("mine", Deadline::after(milliseconds(ms)));
      return "no failure";
    } catch (const PeerError& error) {
      return error.what();
    }
  }

  int agent_ = -1, worker_ = -1;
  FrameReader reader_;
};

TEST_F(AgentLink, ExchangesThroughTheAgent) {
  ASSERT_TRUE(has_agent());
  const auto rendezvous = make_agent_rendezvous();
  EXPECT_EQ(rendezvous->place().rank, 1);
  EXPECT_EQ(rendezvous->place().source, "agent");
  answer(FrameType::kTable, ByteWriter().i64(0).table({"theirs", "mine"}).take());
  EXPECT_THAT(rendezvous->exchange("mine", soon()), testing::ElementsAre("theirs", "mine"));
  const auto frame = received();
  ASSERT_TRUE(frame);
  ByteReader in(frame->body);
  EXPECT_EQ(in.i64(), 0);
  EXPECT_GT(in.i64(), 4000);
  EXPECT_EQ(in.text(), "mine");
  EXPECT_TRUE(in.done());
}

TEST_F(AgentLink, WhoIsMissingIsInTheError) {
  const auto rendezvous = make_agent_rendezvous();
  answer(FrameType::kMissing, ByteWriter().i64(0).i64(0).text("did not arrive before the deadline: rank 0").take());
  EXPECT_THAT(failure(*rendezvous), HasSubstr("exchange #0: rank 0: did not arrive"));
}

TEST_F(AgentLink, AnswersThatAreNoneAreRefused) {
  const std::string answers[] = {
      encode_frame(FrameType::kTable, ByteWriter().i64(9).table({"a", "b"}).take()),        // another exchange
      encode_frame(FrameType::kTable, ByteWriter().i64(0).table({"a"}).take()),             // another world size
      encode_frame(FrameType::kTable, ByteWriter().i64(0).table({"a", "b"}).take() + "x"),  // too long
      encode_frame(FrameType::kTable, "short"),
      encode_frame(FrameType::kGive, ""),
      "no frame at all, just text",
  };
  for (const auto& bytes : answers) {
    const auto rendezvous = make_agent_rendezvous();
    write_all(agent_, bytes, soon());
    EXPECT_THAT(failure(*rendezvous), HasSubstr("malformed"));
  }
}

TEST_F(AgentLink, RandomAnswersOnlyEverFail) {
  std::mt19937 random(3);
  const std::string good = encode_frame(FrameType::kTable, ByteWriter().i64(0).table({"a", "b"}).take());
  for (int round = 0; round < 300; ++round) {
    std::string bytes = good;
    bytes[random() % 12] = static_cast<char>(random());  // the header
    bytes[12 + random() % (bytes.size() - 12)] = static_cast<char>(random());
    const auto rendezvous = make_agent_rendezvous();
    write_all(agent_, bytes, soon());
    shutdown(agent_, SHUT_WR);
    failure(*rendezvous);
    TearDown();
    SetUp();
  }
}

TEST_F(AgentLink, ALostAgentIsAPeerError) {
  const auto rendezvous = make_agent_rendezvous();
  close_agent();
  EXPECT_THAT(failure(*rendezvous), HasSubstr("the agent"));
}

TEST_F(AgentLink, ASilentAgentIsNotWaitedForForever) {
  const auto rendezvous = make_agent_rendezvous();
  EXPECT_THAT(failure(*rendezvous, 50), HasSubstr("no answer from the agent before the deadline"));
}

TEST_F(AgentLink, ReportsAFailureInItsOwnWords) {
  report_failure("data: found nothing", 2);
  const auto frame = received();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, FrameType::kFailure);
  ByteReader in(frame->body);
  EXPECT_EQ(in.i64(), 2);
  EXPECT_EQ(in.text(), "data: found nothing");
}

TEST_F(AgentLink, AFullLinkDoesNotKeepAFailingWorker) {
  const std::string much(1 << 20, 'x');
  while (send(worker_, much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  report_failure("nobody listens", 1);  // returns, and throws nothing
  close_agent();
  report_failure("nobody is there", 1);
}

TEST_F(AgentLink, WithoutAnAgentThereIsNone) {
  unsetenv("MUSTER_AGENT_FD");
  EXPECT_FALSE(has_agent());
  report_failure("to nobody", 1);
  setenv("MUSTER_AGENT_FD", "999", 1);
  EXPECT_THROW(make_agent_rendezvous(), InputError);
  setenv("MUSTER_AGENT_FD", "three", 1);
  EXPECT_THROW(has_agent(), InputError);
  report_failure("to nobody", 1);
}

}  // namespace
}  // namespace muster::comm
