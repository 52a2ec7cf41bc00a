#pragma once
// Small binary messages: fixed-width little-endian numbers and length-prefixed strings. Reading never trusts a length.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

class ByteWriter {
 public:
  ByteWriter& u8(uint8_t v) { return raw(&v, sizeof v); }
  ByteWriter& u32(uint32_t v) { return raw(&v, sizeof v); }
  ByteWriter& i64(int64_t v) { return raw(&v, sizeof v); }
  ByteWriter& text(std::string_view v) {
    u32(static_cast<uint32_t>(v.size()));
    return raw(v.data(), v.size());
  }
  ByteWriter& table(const std::vector<std::string>& v) {
    u32(static_cast<uint32_t>(v.size()));
    for (const auto& one : v) text(one);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  ByteWriter& raw(const void* from, size_t bytes) {
    if (bytes > 0) out_.append(static_cast<const char*>(from), bytes);
    return *this;
  }
  std::string out_;
};

// Reads what ByteWriter wrote. A read past the end gives zeros and empty strings, and ok() is false from then on: check
// done() once, after the last read.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}
  uint8_t u8() { return number<uint8_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  int64_t i64() { return number<int64_t>(); }
  std::string text() {
    const uint32_t bytes = u32();
    if (bytes > left_.size()) ok_ = false;
    if (!ok_) return {};
    std::string out(left_.substr(0, bytes));
    left_.remove_prefix(bytes);
    return out;
  }
  std::vector<std::string> table() {
    const uint32_t count = u32();
    std::vector<std::string> out;
    for (uint32_t i = 0; i < count && ok_; ++i) out.push_back(text());  // ends early: each entry takes at least 4 bytes
    return out;
  }
  bool ok() const { return ok_; }
  // Everything was there, and nothing is left over.
  bool done() const { return ok_ && left_.empty(); }

 private:
  template <typename T>
  T number() {
    T v = 0;
    if (left_.size() < sizeof v) ok_ = false;
    if (!ok_) return 0;
    std::memcpy(&v, left_.data(), sizeof v);
    left_.remove_prefix(sizeof v);
    return v;
  }
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace muster
