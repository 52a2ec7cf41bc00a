// A Llama that others trained (llama2.c's stories260K, on TinyStories) read into our block: what it says shows that the
// conventions are the same: order of the fused weights, rotary pairs, groups, norms, SwiGLU.

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "tests/training/built.h"

namespace muster::worker {
namespace {

using testing::Built;

// Values one after the other; reading past the end fails the test.
class Bytes {
 public:
  explicit Bytes(const std::filesystem::path& path) : in_(path, std::ios::binary) {
    in_.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  }
  template <typename T>
  T value() {
    T v;
    in_.read(reinterpret_cast<char*>(&v), sizeof v);
    return v;
  }
  std::string text(int64_t size) {
    std::string s(static_cast<size_t>(size), '\0');
    in_.read(s.data(), size);
    return s;
  }
  at::Tensor floats(std::vector<int64_t> shape) {
    at::Tensor t = at::empty(shape, at::kFloat);
    in_.read(reinterpret_cast<char*>(t.mutable_data_ptr<float>()), t.numel() * 4);
    return t;
  }

 private:
  std::ifstream in_;
};

struct Header {
  int32_t width, ffn, layers, heads, groups, vocab, length;
};

RunConfig config_of(const Header& h) {
  RunConfig c;
  c.model = "llama";
  c.hidden_size = h.width;
  c.ffn_hidden_size = h.ffn;
  c.num_layers = h.layers;
  c.num_attention_heads = h.heads;
  c.num_query_groups = h.groups;
  c.seq_length = h.length;
  c.rotary_interleaved = true;
  c.untie_embeddings_and_output_weights = false;
  return c;
}

// One layer of each matrix at a time into our parameters; `rows` of a fused one from `first` on.
void fill(Built& b, const std::string& name, const at::Tensor& stacked, int64_t first = 0) {
  const c10::AutoGradMode no_graph(false);
  for (int64_t i = 0; i < stacked.size(0); ++i) {
    const at::Tensor from = stacked[i];
    b.parameter("block" + std::to_string(i) + "." + name + ".weight").narrow(0, first, from.size(0)).copy_(from);
  }
}

// The order of llama2.c's export (version 0).
void read_weights(Bytes& in, const Header& h, Built& b) {
  const int64_t layers = h.layers, width = h.width, keys = h.groups * (h.width / h.heads);
  const c10::AutoGradMode no_graph(false);
  b.parameter("token_embedding").copy_(in.floats({h.vocab, width}));
  fill(b, "norm1", in.floats({layers, width}));
  fill(b, "attention.qkv", in.floats({layers, width, width}));
  fill(b, "attention.qkv", in.floats({layers, keys, width}), width);
  fill(b, "attention.qkv", in.floats({layers, keys, width}), width + keys);
  fill(b, "attention.out", in.floats({layers, width, width}));
  fill(b, "norm2", in.floats({layers, width}));
  fill(b, "mlp.gate_up", in.floats({layers, h.ffn, width}));
  fill(b, "mlp.down", in.floats({layers, width, h.ffn}));
  fill(b, "mlp.gate_up", in.floats({layers, h.ffn, width}), h.ffn);
  b.parameter("final_norm.weight").copy_(in.floats({width}));
}

std::vector<std::string> read_pieces(const std::filesystem::path& path, int64_t count) {
  Bytes in(path);
  in.value<int32_t>();  // the longest piece
  std::vector<std::string> pieces;
  for (int64_t i = 0; i < count; ++i) {
    in.value<float>();  // score
    pieces.push_back(in.text(in.value<int32_t>()));
  }
  return pieces;
}

std::string text_of(const std::vector<int64_t>& tokens, const std::vector<std::string>& pieces) {
  std::string text;
  for (size_t i = 1; i < tokens.size(); ++i) {  // 0: begin of text
    const std::string& piece = pieces.at(static_cast<size_t>(tokens[i]));
    text += piece.starts_with("<0x") ? std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))) : piece;
  }
  return text.starts_with(' ') ? text.substr(1) : text;
}

at::Tensor row(const std::vector<int64_t>& tokens) { return at::tensor(tokens, at::kLong).view({1, -1}); }

std::vector<int64_t> continue_greedily(Built& b, std::vector<int64_t> tokens, size_t length) {
  while (tokens.size() < length) tokens.push_back(b.model->next_token_logits(row(tokens)).argmax(1).item<int64_t>());
  return tokens;
}

double mean_loss(Built& b, const std::vector<int64_t>& tokens) {
  const c10::AutoGradMode no_graph(false);
  const std::vector<int64_t> inputs(tokens.begin(), tokens.end() - 1), targets(tokens.begin() + 1, tokens.end());
  return b.model->loss(row(inputs), row(targets), {}).item<double>() / static_cast<double>(targets.size());
}

TEST(Stories, AModelThatOthersTrainedTellsItsStory) {
  const char* folder = std::getenv("MUSTER_DATA_DIR");
  const std::filesystem::path data = folder ? folder : "";
  if (!folder || !std::filesystem::exists(data / "stories260K.bin") || !std::filesystem::exists(data / "tok512.bin")) {
    GTEST_SKIP() << "needs MUSTER_DATA_DIR with stories260K.bin and tok512.bin";
  }
  Bytes in(data / "stories260K.bin");
  const auto header = in.value<Header>();
  const RunConfig config = config_of(header);
  Built model(config, header.vocab, at::kFloat);
  read_weights(in, header, model);
  const auto tokens = continue_greedily(model, {1}, 100);
  // What llama2.c's own test wants of this model at temperature 0.
  const std::string text = text_of(tokens, read_pieces(data / "tok512.bin", header.vocab));
  EXPECT_TRUE(text.starts_with(
      "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
      "big, red ball. She wanted to play with it, but it was too high.\n"))
      << text;
  const double loss = mean_loss(model, tokens);
  EXPECT_LT(loss, 1.0);

  RunConfig other = config;  // and the loss does see a convention that is not the model's
  other.rotary_interleaved = false;
  Built wrong(other, header.vocab, at::kFloat);
  Bytes again(data / "stories260K.bin");
  again.value<Header>();
  read_weights(again, header, wrong);
  EXPECT_GT(mean_loss(wrong, tokens), 2 * loss);
}

}  // namespace
}  // namespace muster::worker
