#pragma once
// Frames on the socket pair between an agent and its worker: a 12-byte header (magic and version, type, length), then the body.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/base/deadline.h"

namespace muster::comm {

enum class FrameType : uint32_t {
  kGive = 1,     // worker: i64 sequence, i64 milliseconds to wait, text contribution
  kFailure = 2,  // worker: i64 exit code, text line
  kTable = 3,    // agent: i64 sequence, table of contributions by rank
  kMissing = 4,  // agent: i64 sequence, i64 first missing rank, text why
};

inline constexpr uint32_t kLargestFrame = 256u << 20;  // bytes
inline constexpr uint32_t kLargestGive = 16u << 20;    // bytes, of one rank's contribution

struct Frame {
  FrameType type;
  std::string body;
};

std::string encode_frame(FrameType type, std::string_view body);

// Cuts a byte stream into frames. One thread. After a malformed header error() is set and nothing more is given.
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  std::optional<Frame> next();
  const std::string& error() const { return error_; }

 private:
  std::string buffer_, error_;
};

// Reads what there is without blocking. False at the end of the stream or on an error.
bool read_available(int fd, FrameReader& reader);

// Writes what can be written without blocking and removes it from `bytes`. False where the peer is gone.
bool write_available(int fd, std::string& bytes);

// Writes all bytes; blocks until the deadline at most. False where the peer is gone or late.
bool write_all(int fd, std::string_view bytes, Deadline deadline);

}  // namespace muster::comm
