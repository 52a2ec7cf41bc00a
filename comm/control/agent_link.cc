#include "comm/control/agent_link.h"

#include <cstdlib>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/base/bytes.h"
#include "comm/base/error.h"
#include "comm/control/frames.h"
#include "comm/rendezvous/environment.h"

namespace muster::comm {
namespace {

constexpr milliseconds kSlack(1000);  // the leader answers at the deadline; this is its answer's way back

// -1: no agent.
int agent_fd() {
  const char* text = std::getenv("MUSTER_AGENT_FD");
  return text && *text ? static_cast<int>(parse_number("MUSTER_AGENT_FD", text, 3, 1 << 20)) : -1;
}

// The agent is the parent. When it is gone already, the request below came too late.
void end_with_agent() {
  const char* agent = std::getenv("MUSTER_AGENT_PID");
  if (!agent) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parse_number("MUSTER_AGENT_PID", agent, 1, 1 << 30))
    throw PeerError({-1, "exchange", 0, "the agent of this worker is gone"});
}

class AgentRendezvous : public Rendezvous {
 public:
  AgentRendezvous() : fd_(agent_fd()) {
    if (fcntl(fd_, F_SETFD, FD_CLOEXEC) < 0) refuse("MUSTER_AGENT_FD: {} is not open; start this program through muster", fd_);
    end_with_agent();
    Environment environment;
    for (const auto& [name, value] : current_environment()) {
      if (name.starts_with("MUSTER_") && !name.starts_with("MUSTER_MASTER_")) environment[name] = value;
    }
    // Only the place is wanted: the exchange goes through the agent.
    environment["MUSTER_MASTER_ADDR"] = "agent";
    environment["MUSTER_MASTER_PORT"] = "1";
    place_ = read_bootstrap(environment).place;
    place_.source = "agent";
  }
  // The descriptor stays open: report_failure() may come later.

  const Place& place() const override { return place_; }

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    MUSTER_CHECK_LE(mine.size(), size_t{kLargestGive});
    const auto left = deadline.left();
    const auto patience = Deadline::after(left + kSlack);
    const auto body = ByteWriter().i64(sequence_).i64(left.count()).text(mine).take();
    if (!write_all(fd_, encode_frame(FrameType::kGive, body), patience)) fail(-1, "the agent does not take a message");
    auto table = answer(wait_frame(patience));
    ++sequence_;
    return table;
  }

 private:
  Frame wait_frame(Deadline deadline) {
    while (true) {
      if (auto frame = reader_.next()) return std::move(*frame);
      if (!reader_.error().empty()) fail(-1, "malformed message from the agent: " + reader_.error());
      pollfd wait{fd_, POLLIN, 0};
      if (deadline.expired()) fail(-1, "no answer from the agent before the deadline");
      poll(&wait, 1, static_cast<int>(deadline.left().count()) + 1);
      if (wait.revents != 0 && !read_available(fd_, reader_)) fail(-1, "the agent closed the connection");
    }
  }

  std::vector<std::string> answer(const Frame& frame) {
    ByteReader in(frame.body);
    const bool ours = in.i64() == sequence_;
    if (frame.type == FrameType::kMissing) {
      const auto rank = static_cast<int>(in.i64());
      fail(rank, in.text());
    }
    auto table = in.table();
    if (frame.type != FrameType::kTable || !ours || !in.done() || table.size() != static_cast<size_t>(place_.world_size))
      fail(-1, "malformed answer from the agent");
    return table;
  }

  [[noreturn]] void fail(int rank, const std::string& why) { throw PeerError({rank, "exchange", sequence_, why}); }

  const int fd_;
  Place place_;
  FrameReader reader_;
  long long sequence_ = 0;
};

}  // namespace

bool has_agent() { return agent_fd() >= 0; }

std::unique_ptr<Rendezvous> make_agent_rendezvous() { return std::make_unique<AgentRendezvous>(); }

void report_failure(const std::string& line, int exit_code) noexcept {
  try {
    const int fd = agent_fd();
    if (fd < 0) return;
    const auto body = ByteWriter().i64(exit_code).text(line.substr(0, 4096)).take();
    write_all(fd, encode_frame(FrameType::kFailure, body), Deadline::after(milliseconds(100)));
  } catch (const std::exception&) {
    // The exit code still tells.
  }
}

}  // namespace muster::comm
