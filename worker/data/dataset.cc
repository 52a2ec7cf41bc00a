#include "worker/data/dataset.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "comm/base/error.h"
#include "worker/data/check_tokens.h"
#include "worker/data/token_file.h"
#include "worker/kernels/philox.h"

namespace muster::worker {
namespace {

// Part of another stream.
class Slice : public TokenStream {
 public:
  Slice(std::shared_ptr<TokenStream> whole, int64_t begin, int64_t end)
      : whole_(std::move(whole)), begin_(begin), size_(end - begin) {}
  int64_t size() const override { return size_; }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    MUSTER_CHECK_LE(0, at);
    MUSTER_CHECK_LE(at + count, size_);
    whole_->read(begin_ + at, count, out);
  }

 private:
  std::shared_ptr<TokenStream> whole_;
  int64_t begin_, size_;
};

// Characters in memory: each byte is a token.
class CharTokens : public TokenStream {
 public:
  explicit CharTokens(std::string tokens) : tokens_(std::move(tokens)) {}
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    MUSTER_CHECK_LE(0, at);
    MUSTER_CHECK_LE(at + count, size());
    std::transform(tokens_.begin() + at, tokens_.begin() + at + count, out, [](char c) { return static_cast<unsigned char>(c); });
  }

 private:
  const std::string tokens_;
};

void need_length(const std::string& path, const char* part, const TokenStream& stream, int64_t seq_length) {
  if (stream.size() < seq_length + 1) {
    refuse("{}: {} part: found {} tokens, wanted at least seq_length + 1 = {}", path, part, stream.size(), seq_length + 1);
  }
}

std::string read_text(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse("{}: found no such file, wanted a text", path);
  if (!std::filesystem::is_regular_file(status))
    refuse("{}: found {}, wanted a text", path, is_directory(status) ? "a directory" : "a special file");
  std::ifstream in(path, std::ios::binary);
  std::string text(std::filesystem::file_size(path, error), '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(text.size())))
    refuse("{}: cannot read: {}", path, std::strerror(errno));
  if (text.empty()) refuse("{}: found an empty file, wanted a text", path);
  return text;
}

// First (1 - fraction) of the tokens for training, the rest for validation.
void split(Dataset& data, std::shared_ptr<TokenStream> all, double val_fraction) {
  const auto train = static_cast<int64_t>(static_cast<double>(all->size()) * (1.0 - val_fraction));
  data.train = std::make_shared<Slice>(all, 0, train);
  data.val = std::make_shared<Slice>(all, train, all->size());
}

std::shared_ptr<TokenStream> encoded(const std::string& path, const CharVocabulary& vocabulary, std::string text) {
  try {
    vocabulary.encode_in_place(text);
  } catch (const InputError& e) {
    refuse("{}: {}", path, e.what());
  }
  return std::make_shared<CharTokens>(std::move(text));
}

// The vocabulary is that of the training text.
Dataset open_text(const RunConfig& config) {
  std::string text = read_text(config.data);
  Dataset data;
  data.characters = std::make_shared<CharVocabulary>(CharVocabulary::of(text));
  data.vocab_size = data.characters->size();
  auto tokens = encoded(config.data, *data.characters, std::move(text));
  if (config.val_data.empty()) {
    split(data, std::move(tokens), config.val_fraction);
  } else {
    data.train = std::move(tokens);
    data.val = encoded(config.val_data, *data.characters, read_text(config.val_data));
  }
  return data;
}

std::shared_ptr<TokenStream> open_tokens(const std::string& path, const std::string& format) {
  if (!std::filesystem::exists(path)) refuse("{}: found no such file, wanted a token file", path);
  const TokenFormat found = std::filesystem::is_regular_file(path) ? detect_token_format(path) : TokenFormat::kUint16;
  if (format == "llmc" && found == TokenFormat::kUint16)
    refuse("{}: found no llm.c header (magic 20240520 or 20240801), wanted one (data_format llmc)", path);
  return open_token_file(path, format == "uint16" ? TokenFormat::kUint16 : found);
}

Dataset open_token_files(const RunConfig& config) {
  Dataset data;
  auto tokens = open_tokens(config.data, config.data_format);
  int64_t highest = check_tokens(config.data, *tokens, config.vocab_size);
  if (config.val_data.empty()) {
    split(data, std::move(tokens), config.val_fraction);
  } else {
    data.train = std::move(tokens);
    data.val = open_tokens(config.val_data, config.data_format);
    highest = std::max(highest, check_tokens(config.val_data, *data.val, config.vocab_size));
  }
  data.vocab_size = highest + 1;
  return data;
}

bool is_text(const RunConfig& config) {
  if (config.data_format != "auto") return config.data_format == "text";
  if (std::filesystem::path(config.data).extension() == ".bin") return false;
  return !std::filesystem::is_regular_file(config.data) || detect_token_format(config.data) == TokenFormat::kUint16;
}

}  // namespace

CharVocabulary CharVocabulary::of(const std::string& text) {
  bool seen[256] = {};
  for (const char c : text) seen[static_cast<unsigned char>(c)] = true;
  CharVocabulary vocabulary;
  for (int c = 0; c < 256; ++c) {
    if (seen[c]) vocabulary.characters_.push_back(static_cast<char>(c));
  }
  return vocabulary;
}

std::string CharVocabulary::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (const int64_t t : tokens) text.push_back(t < size() ? characters_[t] : '?');
  return text;
}

void CharVocabulary::encode_in_place(std::string& text) const {
  int id[256];
  std::fill(std::begin(id), std::end(id), -1);
  for (int64_t i = 0; i < size(); ++i) id[static_cast<unsigned char>(characters_[i])] = static_cast<int>(i);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (id[c] < 0) refuse("byte {} at position {} is not in the vocabulary of {} characters", c, i, size());
    text[i] = static_cast<char>(id[c]);
  }
}

std::vector<int64_t> CharVocabulary::encode(const std::string& text) const {
  std::string tokens = text;
  encode_in_place(tokens);
  std::vector<int64_t> out(tokens.size());
  std::transform(tokens.begin(), tokens.end(), out.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return out;
}

Dataset open_dataset(const RunConfig& config) {
  if (config.data.empty()) refuse("data: found nothing, wanted a text or token file; give --data FILE");
  Dataset data = is_text(config) ? open_text(config) : open_token_files(config);
  need_length(config.data, "training", *data.train, config.seq_length);
  need_length(config.val_data.empty() ? config.data : config.val_data, "validation", *data.val, config.seq_length);
  if (config.vocab_size > 0 && data.vocab_size > config.vocab_size) {
    refuse("vocab_size: found {}, wanted at least the {} characters of {}", config.vocab_size, data.vocab_size, config.data);
  }
  data.vocab_size = std::max(data.vocab_size, config.vocab_size);
  return data;
}

int64_t sample_start(uint64_t seed, int64_t sample, int64_t stream_size, int64_t seq_length) {
  MUSTER_CHECK_LT(seq_length, stream_size);
  const auto starts = static_cast<uint64_t>(stream_size - seq_length);  // the last target must exist
  const PhiloxBlock r = philox(philox_key(seed, "data order"), static_cast<uint64_t>(sample), 0);
  const uint64_t bits = (static_cast<uint64_t>(r.v[0]) << 32) | r.v[1];
  // Multiply and shift instead of a remainder: bias below 2^-64 * starts (Lemire, 2019).
  return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * starts) >> 64);
}

}  // namespace muster::worker
