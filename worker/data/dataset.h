#pragma once
// Token sequences for training: what the files hold and which sequence comes when.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/config/run_config.h"

namespace muster::worker {

// Characters of a text file, sorted by code unit: token i is vocabulary[i]. Bytes, not code points, beyond ASCII.
class CharVocabulary {
 public:
  static CharVocabulary of(const std::string& text);
  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  std::string decode(const std::vector<int64_t>& tokens) const;
  std::vector<int64_t> encode(const std::string& text) const;  // InputError: a byte that is not in the vocabulary
  void encode_in_place(std::string& text) const;               // the same; each byte becomes its token

 private:
  std::string characters_;
};

// A read-only stream of tokens, memory-mapped where it is a file. Offsets are 64-bit.
// Threads: any, concurrently. Ownership: holds the mapping.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual int64_t size() const = 0;
  // Copies tokens [at, at + count) to out.
  virtual void read(int64_t at, int64_t count, int64_t* out) const = 0;
};

struct Dataset {
  std::shared_ptr<TokenStream> train, val;
  int64_t vocab_size = 0;                      // of the data (config.vocab_size if that is larger)
  std::shared_ptr<CharVocabulary> characters;  // null for token files
};

// Opens what config.data / val_data name; a token file is read through once, for its highest token. InputError: missing file,
// empty text, a part shorter than seq_length + 1 tokens, truncated or wrong-magic token file, token id >= vocabulary (position
// named). Text: first (1 - val_fraction) of the characters are the training part, the rest validation (nanoGPT's int(n * 0.9)).
Dataset open_dataset(const RunConfig& config);

// The start of training sequence number `sample` (counted over the whole run, across ranks): a function of (seed, sample)
// and the stream's size alone. Sequence = tokens [start, start + seq_length), targets one further.
int64_t sample_start(uint64_t seed, int64_t sample, int64_t stream_size, int64_t seq_length);

}  // namespace muster::worker
