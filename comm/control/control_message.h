#pragma once
// What agents and leader say to each other: one small record for all kinds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::comm {

struct ControlMessage {
  enum class Type : uint8_t {
    kHello = 1,  // member: number rank; text host
    kBeat,       // both: still here
    kGive,       // member: number sequence; other milliseconds to wait; text contribution
    kFailure,    // member: number exit code; other 1 = a cause, 0 = perhaps only a consequence; text one line
    kGone,       // member: its worker has ended; number exit code
    kTable,      // leader: number sequence; table contributions by rank
    kMissing,    // leader: number sequence; other first missing rank; text why
    kStop,       // leader: number exit code; other rank; text "rank 1 on host: cause". Stop the worker, then say kGone
    kEnd,        // leader: as kStop; every worker is gone, the agents end
  };
  Type type = Type::kBeat;
  int64_t number = 0, other = 0;
  std::string text;
  std::vector<std::string> table;
};

std::string encode(const ControlMessage& message);
// Nothing where the bytes are no message of this version.
std::optional<ControlMessage> decode(std::string_view bytes);

}  // namespace muster::comm
