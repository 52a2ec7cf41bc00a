#include "launcher/agent/output_relay.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::launcher {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The test plays the worker; this process's own stdout and stderr go to files meanwhile.
class OutputRelayTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("muster-relay-{}", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    unsetenv("MUSTER_TTY");
    fs::remove_all(folder_);
  }
  void begin(int rank) {
    for (const int fd : {1, 2}) {
      saved_[fd - 1] = dup(fd);
      const int file = open(shown_path(fd).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, fd);
      close(file);
    }
    relay_ = std::make_unique<OutputRelay>(rank, (folder_ / "log").string());
    out_ = dup(relay_->child_stdout());
    err_ = dup(relay_->child_stderr());
    relay_->child_started();
  }
  static void say(int fd, const std::string& text) {
    ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void end() {
    close(out_);
    close(err_);
    relay_->finish(Deadline::after(milliseconds(5000)));
    for (const int fd : {1, 2}) {
      dup2(saved_[fd - 1], fd);
      close(saved_[fd - 1]);
    }
  }
  fs::path shown_path(int fd) const { return folder_ / fmt::format("shown-{}", fd); }
  std::string shown(int fd) const { return read_file(shown_path(fd)); }
  std::string log() const { return read_file(folder_ / "log"); }

  fs::path folder_;
  int saved_[2];
  int out_ = -1, err_ = -1;
  std::unique_ptr<OutputRelay> relay_;
};

TEST_F(OutputRelayTest, RankZeroIsSeenAndLogged) {
  begin(0);
  say(out_, "step 1\r\033[Kstep 2\r\033[Kstep 3\nend");
  say(err_, "a note\n");
  end();
  EXPECT_EQ(shown(1), "step 1\r\033[Kstep 2\r\033[Kstep 3\nend");
  EXPECT_EQ(shown(2), "a note\n");
  for (const char* line : {" step 1\n", " step 2\n", " step 3\n", " end\n", " a note\n"}) EXPECT_THAT(log(), HasSubstr(line));
  EXPECT_THAT(log(), MatchesRegex("([0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9] [^\r\033\n]*\n)+"));
}

TEST_F(OutputRelayTest, AnOpenLiveLineIsEnded) {
  setenv("MUSTER_TTY", "1", 1);
  begin(0);
  say(out_, "step 1\nstep 2");
  end();
  EXPECT_EQ(shown(1), "step 1\nstep 2\n");
}

TEST_F(OutputRelayTest, OfOtherRanksOnlyWarningsAndErrors) {
  begin(3);
  say(out_, "progress\n");
  say(err_, "chatter\n12:00:00.000 [rank 3] warning: slow\n12:00:00.000 [rank 3] error: broken\n");
  end();
  EXPECT_EQ(shown(1), "");
  EXPECT_EQ(shown(2), "[rank 3] 12:00:00.000 [rank 3] warning: slow\n[rank 3] 12:00:00.000 [rank 3] error: broken\n");
  EXPECT_THAT(log(), HasSubstr("chatter"));
}

TEST_F(OutputRelayTest, AReportedErrorIsNotShownTwice) {
  for (const bool before : {true, false}) {
    begin(0);
    if (before) relay_->reported("it broke");
    say(err_, "12:00:00.000 [rank 0] error: it broke\n12:00:00.000 [rank 0] error: another\n");
    if (!before) relay_->reported("it broke");
    end();
    EXPECT_EQ(shown(2), "12:00:00.000 [rank 0] error: another\n") << before;
    EXPECT_THAT(log(), HasSubstr("it broke"));
  }
}

TEST_F(OutputRelayTest, AfterAStopErrorsGoToTheLogOnly) {
  begin(0);
  relay_->mute();
  say(err_, "12:00:00.000 [rank 0] error: all_reduce: rank 1 is gone\n");
  end();
  EXPECT_EQ(shown(2), "");
  EXPECT_THAT(log(), HasSubstr("rank 1 is gone"));
}

TEST_F(OutputRelayTest, AStreamThatStaysOpenIsNotWaitedForForever) {
  begin(0);
  say(out_, "text");
  relay_->finish(Deadline::after(milliseconds(100)));
  end();
  EXPECT_EQ(shown(1), "text");
}

TEST_F(OutputRelayTest, AnEndlessLineIsCut) {
  begin(1);
  const std::string much(200 << 10, 'x');
  for (size_t at = 0; at < much.size(); at += 4096) say(out_, much.substr(at, 4096));
  end();
  const std::string text = log();
  EXPECT_GT(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(OutputRelayTest, ALogThatCannotBeWritten) { EXPECT_THROW(OutputRelay(0, "/nowhere/log"), InputError); }

}  // namespace
}  // namespace muster::launcher
