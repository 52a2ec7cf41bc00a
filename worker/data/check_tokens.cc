#include "worker/data/check_tokens.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "comm/base/error.h"
#include "comm/base/log.h"

namespace muster::worker {
namespace {

constexpr int64_t kChunk = 1 << 15;             // tokens read at a time: they stay in the cache
constexpr int64_t kTokensPerThread = 16 << 20;  // below, a thread costs more than it saves
constexpr int64_t kMostThreads = 8;
constexpr int64_t kNone = -1;

struct Part {
  int64_t begin, end;
  int64_t highest = 0;
  int64_t bad_at = kNone, bad_token = 0;
};

void scan(const TokenStream& stream, int64_t limit, Part& part) {
  std::vector<int64_t> chunk(kChunk);
  for (int64_t at = part.begin; at < part.end; at += kChunk) {
    const int64_t count = std::min(kChunk, part.end - at);
    stream.read(at, count, chunk.data());
    const auto end = chunk.begin() + count;
    part.highest = std::max(part.highest, *std::max_element(chunk.begin(), end));
    if (part.highest < limit) continue;
    const auto bad = std::find_if(chunk.begin(), end, [&](int64_t token) { return token >= limit; });
    part.bad_at = at + (bad - chunk.begin());
    part.bad_token = *bad;
    return;
  }
}

std::vector<Part> parts_of(int64_t size) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t count = std::clamp<int64_t>(size / kTokensPerThread, 1, std::min(kMostThreads, cores));
  std::vector<Part> parts;
  for (int64_t i = 0; i < count; ++i) parts.push_back({size * i / count, size * (i + 1) / count});
  return parts;
}

}  // namespace

int64_t check_tokens(const std::string& path, const TokenStream& stream, int64_t vocab_size) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t limit = vocab_size > 0 ? vocab_size : std::numeric_limits<int64_t>::max();
  auto parts = parts_of(stream.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < parts.size(); ++i) threads.emplace_back([&, i] { scan(stream, limit, parts[i]); });
    scan(stream, limit, parts[0]);
  }
  int64_t highest = 0;
  for (const Part& part : parts) {
    if (part.bad_at != kNone)
      refuse("{}: token {} at position {}, wanted ids below vocab_size ({})", path, part.bad_token, part.bad_at, vocab_size);
    highest = std::max(highest, part.highest);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (seconds > 2) log_info("{}: read {} tokens in {:.1f} s to check them", path, stream.size(), seconds);
  return highest;
}

}  // namespace muster::worker
