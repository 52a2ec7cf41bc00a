#include "worker/data/token_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/base/error.h"

namespace muster::worker {
namespace {

constexpr int64_t kHeaderBytes = 256 * 4;
constexpr int32_t kMagicGpt2 = 20240520, kVersionGpt2 = 1;
constexpr int32_t kMagicLlama3 = 20240801, kVersionLlama3 = 7;

struct Header {
  int32_t magic = 0, version = 0;
  int64_t tokens = 0;
};

Header read_header(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  int32_t words[3] = {};
  in.read(reinterpret_cast<char*>(words), sizeof words);
  if (!in) return {};
  return {words[0], words[1], static_cast<uint32_t>(words[2])};
}

// A read-only mapping of a whole file.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) != 0) {
      const int error = errno;
      if (fd >= 0) ::close(fd);
      refuse("{}: cannot open: {}", path, std::strerror(error));
    }
    size_ = info.st_size;
    if (S_ISREG(info.st_mode) && size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (!S_ISREG(info.st_mode))
      refuse("{}: found {}, wanted a regular file", path, S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    if (size_ == 0) refuse("{}: found an empty file, wanted tokens", path);
    if (data_ == MAP_FAILED) refuse("{}: cannot map {} bytes: {}", path, size_, std::strerror(errno));
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* data() const { return static_cast<const char*>(data_); }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

template <typename T>
class MappedTokens : public TokenStream {
 public:
  MappedTokens(std::shared_ptr<Mapping> mapping, int64_t skip_bytes)
      : mapping_(std::move(mapping)),
        bytes_(mapping_->data() + skip_bytes),
        size_((mapping_->size() - skip_bytes) / static_cast<int64_t>(sizeof(T))) {}
  int64_t size() const override { return size_; }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    MUSTER_CHECK_LE(0, at);
    MUSTER_CHECK_LE(at + count, size_);
    const char* from = bytes_ + at * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < count; ++i) {
      T token;
      std::memcpy(&token, from + i * static_cast<int64_t>(sizeof(T)), sizeof token);
      out[i] = token;
    }
  }

 private:
  std::shared_ptr<Mapping> mapping_;
  const char* bytes_;
  int64_t size_;
};

}  // namespace

TokenFormat detect_token_format(const std::string& path) {
  const Header header = read_header(path);
  if (header.magic == kMagicGpt2) {
    if (header.version != kVersionGpt2)
      refuse("{}: magic {} with version {}, wanted version {}", path, header.magic, header.version, kVersionGpt2);
    return TokenFormat::kLlmcUint16;
  }
  if (header.magic == kMagicLlama3) {
    if (header.version != kVersionLlama3)
      refuse("{}: magic {} with version {}, wanted version {}", path, header.magic, header.version, kVersionLlama3);
    return TokenFormat::kLlmcUint32;
  }
  return TokenFormat::kUint16;
}

std::shared_ptr<TokenStream> open_token_file(const std::string& path, TokenFormat format) {
  auto mapping = std::make_shared<Mapping>(path);
  if (format == TokenFormat::kUint16) {
    if (mapping->size() % 2 != 0)
      refuse("{}: found {} bytes, wanted an even number (uint16 tokens without header)", path, mapping->size());
    return std::make_shared<MappedTokens<uint16_t>>(std::move(mapping), 0);
  }
  const int64_t width = format == TokenFormat::kLlmcUint16 ? 2 : 4;
  const int64_t found = mapping->size() - kHeaderBytes, wanted = read_header(path).tokens * width;
  if (found != wanted) {
    refuse("{}: found {} bytes of tokens, wanted {} ({} tokens of {} bytes in the header); the file is {}", path,
           std::max<int64_t>(0, found), wanted, wanted / width, width,
           found < wanted ? "truncated" : "longer than its header says");
  }
  if (width == 2) return std::make_shared<MappedTokens<uint16_t>>(std::move(mapping), kHeaderBytes);
  return std::make_shared<MappedTokens<uint32_t>>(std::move(mapping), kHeaderBytes);
}

}  // namespace muster::worker
