#include "worker/data/dataset.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "worker/data/check_tokens.h"
#include "worker/data/token_file.h"

namespace muster::worker {
namespace {

class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "muster-data-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  RunConfig config(const std::string& data, int64_t seq_length = 4) {
    RunConfig c;
    c.data = data;
    c.seq_length = seq_length;
    return c;
  }
  std::string folder_;
};

using DatasetTest = TemporaryFolder;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> words(256);
  words[0] = magic;
  words[1] = version;
  words[2] = tokens;
  return bytes_of(words);
}

std::vector<int64_t> all_tokens(const TokenStream& stream) {
  std::vector<int64_t> tokens(stream.size());
  stream.read(0, stream.size(), tokens.data());
  return tokens;
}

std::string refusal(const RunConfig& config) {
  try {
    open_dataset(config);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

#define EXPECT_REFUSED(config, part) EXPECT_NE(refusal(config).find(part), std::string::npos) << refusal(config)

TEST_F(DatasetTest, TextBecomesSortedCharacters) {
  const Dataset data = open_dataset(config(write("t.txt", "hello world, hello all"), 2));
  EXPECT_EQ(data.vocab_size, 10);
  EXPECT_EQ(data.train->size(), 19);  // int(22 * 0.9)
  EXPECT_EQ(data.val->size(), 3);
}

TEST_F(DatasetTest, DecodeUndoesEncode) {
  const auto v = CharVocabulary::of("banana\n\xc3\xa9");
  EXPECT_EQ(v.size(), 6);
  EXPECT_EQ(v.encode("ab"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(v.decode(v.encode("nab\xc3\xa9\n")), "nab\xc3\xa9\n");
  EXPECT_THROW(v.encode("x"), InputError);
}

TEST_F(DatasetTest, HeaderlessUint16AndItsSplit) {
  std::vector<uint16_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 600);
  const Dataset data = open_dataset(config(write("t.bin", bytes_of(tokens))));
  EXPECT_EQ(data.train->size(), 90);
  EXPECT_EQ(data.vocab_size, 99 * 600 + 1);
  EXPECT_EQ(all_tokens(*data.val)[0], 90 * 600);
}

TEST_F(DatasetTest, LlmcFilesOfBothWidths) {
  RunConfig c = config(write("train.bin", header(20240520, 1, 6) + bytes_of<uint16_t>({1, 2, 3, 4, 5, 50256})));
  c.val_data = write("val.bin", header(20240801, 7, 5) + bytes_of<uint32_t>({128255, 1, 2, 3, 4}));
  const Dataset data = open_dataset(c);
  EXPECT_EQ(all_tokens(*data.train), (std::vector<int64_t>{1, 2, 3, 4, 5, 50256}));
  EXPECT_EQ(all_tokens(*data.val)[0], 128255);
  EXPECT_EQ(data.vocab_size, 128256);
}

TEST_F(DatasetTest, OffsetsAre64Bit) {
  const std::string path = folder_ + "/big.bin";
  const int64_t tokens = (int64_t{1} << 32) + 1000;  // 8 GiB, sparse
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  if (::ftruncate(fd, tokens * 2) != 0) GTEST_SKIP() << "this file system has no sparse file of 8 GiB";
  const uint16_t mark = 777;
  ASSERT_EQ(::pwrite(fd, &mark, 2, (tokens - 3) * 2), 2);
  ::close(fd);
  // open_dataset would scan all of it; the mapping alone is meant here.
  const auto stream = open_token_file(path, TokenFormat::kUint16);
  int64_t token = 0;
  stream->read(tokens - 3, 1, &token);
  EXPECT_EQ(stream->size(), tokens);
  EXPECT_EQ(token, 777);
}

TEST_F(DatasetTest, BadFilesAreNamed) {
  EXPECT_REFUSED(config(folder_ + "/missing.txt"), "missing.txt: found no such file");
  EXPECT_REFUSED(config(folder_ + "/missing.bin"), "missing.bin: found no such file");
  EXPECT_REFUSED(config(folder_), "found a directory, wanted a text");
  EXPECT_REFUSED(config("/dev/null"), "found a special file, wanted a text");
  EXPECT_REFUSED(config(""), "give --data FILE");
  EXPECT_REFUSED(config(write("empty.txt", "")), "found an empty file");
  EXPECT_REFUSED(config(write("empty.bin", "")), "found an empty file");
  EXPECT_REFUSED(config(write("short.txt", "abcdefghij"), 64),
                 "training part: found 9 tokens, wanted at least seq_length + 1 = 65");
  EXPECT_REFUSED(config(write("shortval.txt", "abcdefghijabcdefghij"), 4), "validation part: found 2 tokens");
  EXPECT_REFUSED(config(write("odd.bin", "abc")), "found 3 bytes, wanted an even number");
  EXPECT_REFUSED(config(write("cut.bin", header(20240520, 1, 100) + std::string(150, 'x'))),
                 "found 150 bytes of tokens, wanted 200");
  EXPECT_REFUSED(config(write("cut.bin", header(20240520, 1, 100).substr(0, 20))), "the file is truncated");
  EXPECT_REFUSED(config(write("long.bin", header(20240801, 7, 2) + std::string(12, 'x'))), "longer than its header says");
  EXPECT_REFUSED(config(write("version.bin", header(20240520, 3, 0))), "magic 20240520 with version 3, wanted version 1");
  RunConfig wrong_magic = config(write("magic.bin", header(123, 1, 0)));
  wrong_magic.data_format = "llmc";
  EXPECT_REFUSED(wrong_magic, "found no llm.c header");
}

TEST_F(DatasetTest, TokenBeyondTheVocabularyIsNamedWithItsPosition) {
  std::vector<uint16_t> tokens(70000, 5);
  tokens[69000] = 99;
  RunConfig c = config(write("t.bin", bytes_of(tokens)));
  c.vocab_size = 50;
  EXPECT_REFUSED(c, "token 99 at position 69000, wanted ids below vocab_size (50)");
  c.vocab_size = 128;
  EXPECT_EQ(open_dataset(c).vocab_size, 128);
}

TEST_F(DatasetTest, ValidationTextOfItsOwn) {
  RunConfig c = config(write("train.txt", "abcabcabc"));
  c.val_data = write("val.txt", "cccab");
  const Dataset data = open_dataset(c);
  EXPECT_EQ(data.train->size(), 9);
  EXPECT_EQ(all_tokens(*data.val), (std::vector<int64_t>{2, 2, 2, 0, 1}));
  c.val_data = write("other.txt", "abcxyz");
  EXPECT_REFUSED(c, "other.txt: byte 120 at position 3 is not in the vocabulary of 3 characters");
}

// Token 1 everywhere but where it is said.
class Ones : public TokenStream {
 public:
  explicit Ones(std::map<int64_t, int64_t> others) : others_(std::move(others)) {}
  int64_t size() const override { return int64_t{40} << 20; }
  void read(int64_t at, int64_t count, int64_t* out) const override {
    std::fill_n(out, count, 1);
    for (auto it = others_.lower_bound(at); it != others_.end() && it->first < at + count; ++it) out[it->first - at] = it->second;
  }

 private:
  std::map<int64_t, int64_t> others_;
};

TEST(CheckTokens, LargeStreamsAreReadToTheEnd) {
  const int64_t last = (int64_t{40} << 20) - 1;
  EXPECT_EQ(check_tokens("x", Ones({}), 0), 1);
  EXPECT_EQ(check_tokens("x", Ones({{last, 77}, {3, 4}}), 0), 77);
  EXPECT_EQ(check_tokens("x", Ones({{5, 77}, {6, 0}}), 78), 77);
}

TEST(CheckTokens, TheFirstOfSeveralIsNamed) {
  try {
    check_tokens("big.bin", Ones({{5000000, 90}, {39000000, 80}}), 50);
    FAIL();
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "big.bin: token 90 at position 5000000, wanted ids below vocab_size (50)");
  }
}

TEST(SampleStart, IsAFunctionOfSeedAndSampleWithinTheStream) {
  std::set<int64_t> starts;
  for (int64_t s = 0; s < 2000; ++s) {
    const int64_t start = sample_start(1, s, 20, 8);
    EXPECT_GE(start, 0);
    EXPECT_LE(start + 8, 19);
    EXPECT_EQ(start, sample_start(1, s, 20, 8));
    starts.insert(start);
  }
  EXPECT_EQ(starts.size(), 12u);  // every valid start comes up
  EXPECT_NE(sample_start(1, 5, 1 << 20, 8), sample_start(2, 5, 1 << 20, 8));
}

TEST(TinyShakespeare, SplitCountsAreNanoGpts) {
  const char* folder = std::getenv("MUSTER_DATA_DIR");
  const std::string path = std::string(folder ? folder : "") + "/tinyshakespeare.txt";
  if (!folder || !std::filesystem::exists(path)) GTEST_SKIP() << "needs MUSTER_DATA_DIR with tinyshakespeare.txt";
  RunConfig c;
  c.data = path;
  const Dataset data = open_dataset(c);
  EXPECT_EQ(data.vocab_size, 65);
  EXPECT_EQ(data.train->size(), 1003854);
  EXPECT_EQ(data.val->size(), 111540);
}

}  // namespace
}  // namespace muster::worker
