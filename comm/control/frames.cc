#include "comm/control/frames.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

namespace muster::comm {
namespace {

constexpr uint32_t kMagic = 0x4d53'5401;  // the last byte is the version

struct Header {
  uint32_t magic, type, bytes;
};

std::string problem_of(const Header& h) {
  if (h.magic != kMagic)
    return fmt::format("found magic {:#010x}, wanted {:#010x}; are agent and worker of one build?", h.magic, kMagic);
  if (h.type < 1 || h.type > 4) return fmt::format("found frame type {}, wanted 1 to 4", h.type);
  if (h.bytes > kLargestFrame) return fmt::format("found a frame of {} bytes, wanted at most {}", h.bytes, kLargestFrame);
  return "";
}

}  // namespace

std::string encode_frame(FrameType type, std::string_view body) {
  const Header header{kMagic, static_cast<uint32_t>(type), static_cast<uint32_t>(body.size())};
  std::string out(reinterpret_cast<const char*>(&header), sizeof header);
  return out.append(body);
}

std::optional<Frame> FrameReader::next() {
  Header header;
  if (!error_.empty() || buffer_.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, buffer_.data(), sizeof header);
  error_ = problem_of(header);
  if (!error_.empty() || buffer_.size() - sizeof header < header.bytes) return std::nullopt;
  Frame frame{static_cast<FrameType>(header.type), buffer_.substr(sizeof header, header.bytes)};
  buffer_.erase(0, sizeof header + header.bytes);
  return frame;
}

bool read_available(int fd, FrameReader& reader) {
  char block[65536];
  while (true) {
    const ssize_t got = recv(fd, block, sizeof block, MSG_DONTWAIT);
    if (got > 0) {
      reader.feed({block, static_cast<size_t>(got)});
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (errno == EAGAIN) {
      return true;
    }
  }
}

bool write_available(int fd, std::string& bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) bytes.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && errno != EINTR) return errno == EAGAIN;
  }
  return true;
}

bool write_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    pollfd wait{fd, POLLOUT, 0};
    if (deadline.expired()) return false;
    poll(&wait, 1, static_cast<int>(deadline.left().count()) + 1);
  }
  return true;
}

}  // namespace muster::comm
