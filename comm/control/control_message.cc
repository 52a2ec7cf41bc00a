#include "comm/control/control_message.h"

#include "comm/base/bytes.h"

namespace muster::comm {
namespace {
constexpr uint8_t kVersion = 1;
constexpr uint8_t kLastType = static_cast<uint8_t>(ControlMessage::Type::kEnd);
}  // namespace

std::string encode(const ControlMessage& m) {
  return ByteWriter().u8(kVersion).u8(static_cast<uint8_t>(m.type)).i64(m.number).i64(m.other).text(m.text).table(m.table).take();
}

std::optional<ControlMessage> decode(std::string_view bytes) {
  ByteReader in(bytes);
  const uint8_t version = in.u8(), type = in.u8();
  if (version != kVersion || type < 1 || type > kLastType) return std::nullopt;
  ControlMessage m{static_cast<ControlMessage::Type>(type), in.i64(), in.i64(), in.text(), in.table()};
  if (!in.done()) return std::nullopt;
  return m;
}

}  // namespace muster::comm
