#include "launcher/agent/worker_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/deadline.h"
#include "comm/base/error.h"
#include "comm/base/log.h"

namespace muster::launcher {
namespace {

constexpr milliseconds kSend{2000};

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

ChildSetup setup_of(const std::vector<std::string>& argv, int link, int out, int err) {
  ChildSetup setup;
  setup.argv = argv;
  setup.environment = {{"MUSTER_AGENT_FD", std::to_string(link)}};
  setup.inherited_fd = link;
  setup.stdout_fd = out;
  setup.stderr_fd = err;
  setup.death_signal = SIGKILL;
  return setup;
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& argv) : WorkerProcess(argv, socket_ends(), pipe_ends(), pipe_ends()) {}

WorkerProcess::WorkerProcess(const std::vector<std::string>& argv, Ends link, Ends out, Ends err)
    : link_(std::move(link.mine)),
      stdout_(std::move(out.mine)),
      stderr_(std::move(err.mine)),
      process_(setup_of(argv, link.child.get(), out.child.get(), err.child.get())) {}

WorkerProcess::Ends WorkerProcess::socket_ends() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) refuse("worker: cannot make a socket pair: {}", std::strerror(errno));
  set_nonblocking(fds[0]);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

WorkerProcess::Ends WorkerProcess::pipe_ends() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) refuse("worker: cannot make a pipe: {}", std::strerror(errno));
  set_nonblocking(fds[0]);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void WorkerProcess::send(const comm::Message& message) {
  const std::string bytes = comm::MessageStream::frame(message);
  const Deadline deadline = Deadline::after(kSend);
  for (size_t sent = 0; sent < bytes.size() && link_.get() >= 0;) {
    const ssize_t n = ::send(link_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    pollfd p{link_.get(), POLLOUT, 0};
    if ((errno != EAGAIN && errno != EINTR) || ::poll(&p, 1, static_cast<int>(deadline.left().count())) == 0) return;  // its end is seen elsewhere
  }
}

std::vector<comm::Message> WorkerProcess::receive() {
  const std::string bytes = read(link_);
  if (!stream_.feed(bytes)) {
    log_warn("worker: sent something that is no message; its link is closed");
    link_.reset();
  }
  std::vector<comm::Message> messages;
  while (auto m = stream_.next()) messages.push_back(std::move(*m));
  return messages;
}

std::string WorkerProcess::read(UniqueFd& fd) {
  std::string out;
  char chunk[1 << 16];
  while (fd.get() >= 0 && out.size() < (1 << 20)) {
    const ssize_t n = ::read(fd.get(), chunk, sizeof chunk);
    if (n > 0) {
      out.append(chunk, static_cast<size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      fd.reset();
    } else {
      break;
    }
  }
  return out;
}

}  // namespace muster::launcher
