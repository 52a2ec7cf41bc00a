#include "worker/config/run_config.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <map>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "worker/config/config_keys.h"
#include "worker/config/yaml_reader.h"

namespace muster::worker {
namespace {

using ::testing::TestWithParam;

class YamlFile {
 public:
  explicit YamlFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "muster-config-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd >= 0) ::close(fd);
    path_ = name;
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~YamlFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

RunConfig from_yaml(const std::string& text, const std::vector<std::string>& arguments = {}) {
  return load_config(YamlFile(text).path(), parse_overrides(arguments));
}

template <typename F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "message: " << message << "\nwanted:  " << part;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(RunConfig, DefaultsWithoutAFile) {
  const RunConfig c = load_config("", {});
  EXPECT_EQ(to_yaml(c), to_yaml(RunConfig{}));
}

TEST(RunConfig, ReadsKeysOfEveryType) {
  const RunConfig c = from_yaml("hidden_size: 384\nlr: 6e-4\nadd_bias_linear: true\ndata: my file.txt\n");
  EXPECT_EQ(c.hidden_size, 384);
  EXPECT_EQ(c.lr, 6e-4);
  EXPECT_TRUE(c.add_bias_linear);
  EXPECT_EQ(c.data, "my file.txt");
}

TEST(RunConfig, GroupsHaveNoMeaningOfTheirOwn) {
  const RunConfig c = from_yaml("model:\n  model: gpt\n  num_layers: 7\nanything:\n  deeper: {lr: 0.5}\ndata: {data: x.txt}\n");
  EXPECT_EQ(c.num_layers, 7);
  EXPECT_EQ(c.lr, 0.5);
  EXPECT_EQ(c.data, "x.txt");
}

TEST(RunConfig, AliasesOfNanoGpt) {
  const RunConfig c = from_yaml(
      "n_layer: 6\nn_head: 6\nn_embd: 384\nblock_size: 256\nbatch_size: 64\ndropout: 0.2\nmax_iters: 5000\n"
      "learning_rate: 1e-3\nwarmup_iters: 7\nbeta2: 0.98\nbias: true\ngrad_clip: 0.5\ndtype: bf16\n");
  EXPECT_EQ(c.num_layers * 1000000 + c.num_attention_heads * 100000 + c.hidden_size, 6600384);
  EXPECT_EQ(c.seq_length, 256);
  EXPECT_EQ(c.micro_batch_size, 64);
  EXPECT_EQ(c.hidden_dropout, 0.2);
  EXPECT_EQ(c.attention_dropout, 0.2);
  EXPECT_EQ(c.train_iters, 5000);
  EXPECT_EQ(c.lr_warmup_iters, 7);
  EXPECT_EQ(c.adam_beta2, 0.98);
  EXPECT_TRUE(c.add_bias_linear);
  EXPECT_EQ(c.clip_grad, 0.5);
  EXPECT_EQ(c.precision, "bf16");
}

TEST(RunConfig, EveryAliasNamesKeysThatExist) {
  for (const auto& alias : config_aliases()) {
    EXPECT_EQ(find_keys(alias.alias).size(), alias.keys.size()) << alias.alias;
    for (const auto& key : config_keys()) EXPECT_NE(key.name, alias.alias);
  }
}

TEST(RunConfig, CommandLineWinsAndReadsDashes) {
  const RunConfig c =
      from_yaml("lr: 1\ntrain_iters: 5\n", {"--train-iters", "9", "--lr=2e-3", "--add-bias-linear", "--max-grad-norm", "0.1"});
  EXPECT_EQ(c.train_iters, 9);
  EXPECT_EQ(c.lr, 2e-3);
  EXPECT_TRUE(c.add_bias_linear);
  EXPECT_EQ(c.clip_grad, 0.1);
}

TEST(RunConfig, DottedKeysInTheirGroupOrAlone) {
  const RunConfig c = from_yaml("fp16: {hysteresis: 5}\nshard_size: 3\nrecompute.granularity: full\n");
  EXPECT_EQ(c.fp16_hysteresis, 5);
  EXPECT_EQ(c.zero_shard_size, 3);
  EXPECT_EQ(c.recompute_granularity, "full");
  std::map<std::string, int> ends;  // each stands for one key
  for (const auto& key : config_keys()) EXPECT_EQ(++ends[key.name.substr(key.name.rfind('.') + 1)], 1) << key.name;
}

TEST(RunConfig, YamlReadsDashes) {
  const RunConfig c = from_yaml("num-layers: 7\nmax-grad-norm: 0.5\n");
  EXPECT_EQ(c.num_layers, 7);
  EXPECT_EQ(c.clip_grad, 0.5);
  expect_part(refusal([] { from_yaml("num-layers: 7\nnum_layers: 8\n"); }), ":2: num_layers is already set at ");
}

TEST(RunConfig, Durations) {
  EXPECT_EQ(from_yaml("comm_timeout_s: 30\n").comm_timeout_s, 30);
  EXPECT_EQ(from_yaml("comm_timeout_s: 30s\n").comm_timeout_s, 30);
  EXPECT_EQ(from_yaml("comm_timeout_s: 1.5m\n").comm_timeout_s, 90);
  EXPECT_EQ(from_yaml("comm_timeout_s: 2h\n").comm_timeout_s, 7200);
  EXPECT_EQ(from_yaml("comm_timeout_s: 500ms\n").comm_timeout_s, 0.5);
}

TEST(RunConfig, EmptyFileAndEmptyGroupAreNoError) {
  EXPECT_EQ(to_yaml(from_yaml("")), to_yaml(RunConfig{}));
  EXPECT_EQ(to_yaml(from_yaml("# nothing\n")), to_yaml(RunConfig{}));
  EXPECT_EQ(to_yaml(from_yaml("model: {}\n")), to_yaml(RunConfig{}));
}

struct BadYaml {
  const char* text;
  const char* part;  // ":N:" stands behind the file's name
};

// In a test's name.
std::string plain(std::string text) {
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
}
void PrintTo(const BadYaml& bad, std::ostream* out) { *out << plain(bad.text); }

class RefusedYaml : public TestWithParam<BadYaml> {};

TEST_P(RefusedYaml, OnOneLineThatSaysWhere) {
  const YamlFile file(GetParam().text);
  expect_part(refusal([&] { load_config(file.path(), {}); }), file.path() + GetParam().part);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RefusedYaml,
    ::testing::Values(
        BadYaml{"lr: 1\n\nlerning_rate: 3\n", ":3: unknown key 'lerning_rate'; did you mean 'learning_rate' (lr)?"},
        BadYaml{"num_layer: 3\n", ":1: unknown key 'num_layer'; did you mean 'num_layers'?"},
        BadYaml{"xyzzyplughfoo: 3\n", ":1: unknown key 'xyzzyplughfoo'; docs/configuration.md lists all keys"},
        BadYaml{"gradient_accumulation_steps: 4\n",
                ":1: unknown key 'gradient_accumulation_steps'; it follows from global_batch_size"},
        BadYaml{"a:\n  b:\n    lrr: 4\n", ":3: unknown key 'lrr'; did you mean 'lr'?"},
        BadYaml{"lr: -1\n", ":1: lr: found '-1', wanted a number in [0, 1000000]"},
        BadYaml{"lr: fast\n", ":1: lr: found 'fast', wanted a number"},
        BadYaml{"lr: 1e-3x\n", ":1: lr: found '1e-3x', wanted a number"},
        BadYaml{"lr: .nan\n", ":1: lr: found '.nan', wanted a number"},
        BadYaml{"lr: nan\n", ":1: lr: found 'nan', wanted a number"},
        BadYaml{"lr: inf\n", ":1: lr: found 'inf', wanted a number"},
        BadYaml{"lr: 1e999\n", ":1: lr: found '1e999', wanted a number"},
        BadYaml{"lr: ''\n", ":1: lr: found '', wanted a number"}, BadYaml{"lr:\n", ":1: lr: found nothing, wanted one value"},
        BadYaml{"lr: [1]\n", ":1: lr: found a list, wanted one value"},
        BadYaml{"lr: {x: 1}\n", ":1: lr: found a mapping, wanted one value"},
        BadYaml{"num_layers: 2.5\n", ":1: num_layers: found '2.5', wanted a whole number in [1, 10000]"},
        BadYaml{"num_layers: 0\n", ":1: num_layers: found '0', wanted a whole number"},
        BadYaml{"train_iters: 99999999999999999999\n", ":1: train_iters: found '99999999999999999999', wanted a whole number"},
        BadYaml{"train_iters: 9223372036854775807\n", ":1: train_iters: found '9223372036854775807', wanted a whole number"},
        BadYaml{"dropout: 1\n", ":1: hidden_dropout: found '1', wanted a number in [0, 1)"},
        BadYaml{"hidden_dropout: -0.1\n", ":1: hidden_dropout: found '-0.1', wanted a number in [0, 1)"},
        BadYaml{"add_bias_linear: maybe\n", ":1: add_bias_linear: found 'maybe', wanted true or false"},
        BadYaml{"precision: fp12\n", ":1: precision: found 'fp12', wanted one of fp32, tf32, bf16, fp16, fp64"},
        BadYaml{"model: bert\n", ":1: model: found 'bert', wanted one of gpt, llama"},
        BadYaml{"comm_timeout_s: 3d\n", ":1: comm_timeout_s: found '3d', wanted a number in [0.1, 1000000] (seconds)"},
        BadYaml{"data: \"a\\nb\"\n", ":1: data: found 'a\\x0ab', wanted UTF-8 text without control characters"},
        BadYaml{"data: \"\\xe9\"\nlr: \"1\\n\"\n", ":2: lr: found '1\\x0a', wanted a number"},
        BadYaml{"lr: 1\nlr: 2\n", ":2: lr is already set at "}, BadYaml{"lr: 1\nlearning_rate: 2\n", ":2: lr is already set at "},
        BadYaml{"- lr\n", ":1: found a list, wanted a mapping of keys to values"},
        BadYaml{"lr\n", ":1: found a single value, wanted a mapping"},
        BadYaml{"lr: 1\n---\nlr: 2\n", ":2: found more after the end of the mapping, wanted one document"},
        BadYaml{"? [a]\n: 1\n", ":1: found a key that is no word"}, BadYaml{"lr: 1\nx: [1, 2\n", ":3:1: not YAML: "},
        BadYaml{"lr: 1\n  seed: 2\n", ":2:7: not YAML: "}, BadYaml{"lr: *nowhere\n", ":1:5: not YAML: "},
        BadYaml{"a: &a\n  b: *a\n", ":1: groups are nested deeper than 8"}));

TEST(RunConfig, ManyAliasesOfAnEmptyGroupEnd) {
  std::string text = "a0: &a0 {}\n";
  for (int i = 1; i < 8; ++i) {
    text += fmt::format("a{}: &a{} {{", i, i);
    for (int j = 0; j < 20; ++j) text += fmt::format("{}k{}: *a{}", j ? ", " : "", j, i - 1);
    text += "}\n";
  }
  expect_part(refusal([&] { from_yaml(text); }), "more than 1000 entries");
}

TEST(RunConfig, DeepBracketsAreRefused) {
  for (const char* text : {"[", "{a: ", "- "}) {
    std::string deep;
    while (deep.size() < 1000000) deep += text;
    EXPECT_NE(refusal([&] { from_yaml(deep); }), "no error") << text;
  }
}

TEST(RunConfig, FilesThatAreNone) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  expect_part(refusal([&] { load_config(folder + "/missing/run.yaml", {}); }),
              "run.yaml: cannot open: No such file or directory");
  expect_part(refusal([&] { load_config(folder, {}); }), folder + ": found a directory, wanted a YAML configuration");
  expect_part(refusal([&] { from_yaml(std::string(2 << 20, '\n')); }), "larger than 1 MiB");
}

struct BadArguments {
  std::vector<std::string> words;
  const char* message;
};

void PrintTo(const BadArguments& bad, std::ostream* out) {
  for (const auto& word : bad.words) *out << plain(word);
}

class RefusedArguments : public TestWithParam<BadArguments> {};

TEST_P(RefusedArguments, NameTheKeyAsGiven) {
  expect_part(refusal([&] { load_config("", parse_overrides(GetParam().words)); }), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RefusedArguments,
    ::testing::Values(BadArguments{{"--lr", "-3"}, "--lr: found '-3', wanted a number in [0, 1000000]"},
                      BadArguments{{"--lr"}, "--lr: found 'true', wanted a number"},
                      BadArguments{{"--learning-rate=x"}, "--learning-rate: lr: found 'x', wanted a number"},
                      BadArguments{{"--hidden-dropout", "2"}, "--hidden-dropout: found '2', wanted a number in [0, 1)"},
                      BadArguments{{"--learning-rat", "1"},
                                   "--learning-rat: unknown key 'learning-rat'; did you mean 'learning_rate' (lr)?"},
                      BadArguments{{"--=1"}, "--: unknown key ''"},
                      BadArguments{{"--"}, "command line: found '--', wanted --key value"},
                      BadArguments{{"lr", "1"}, "command line: found 'lr', wanted --key value"},
                      BadArguments{{"-lr", "1"}, "command line: found '-lr', wanted --key value"}));

TEST(FinalizeConfig, FillsInDerivedValues) {
  RunConfig c = from_yaml("micro_batch_size: 3\ntrain_iters: 77\n");
  finalize_config(c, 4);
  EXPECT_EQ(c.global_batch_size, 12);
  EXPECT_EQ(c.lr_decay_iters, 77);
  EXPECT_EQ(gradient_accumulation_steps(c, 4), 1);
}

TEST(FinalizeConfig, GlobalBatchShowsAllNumbersAndWhatWouldDo) {
  RunConfig c = from_yaml("micro_batch_size: 4\nglobal_batch_size: 30\n");
  expect_part(refusal([&] { finalize_config(c, 3); }),
              "global_batch_size: found 30, wanted a multiple of micro_batch_size (4) x ranks (3) = 12; 24 or 36 would do, or "
              "micro_batch_size 2");
  RunConfig small = from_yaml("micro_batch_size: 4\nglobal_batch_size: 5\n");
  expect_part(refusal([&] { finalize_config(small, 2); }), "= 8; 8 would do");
}

TEST(FinalizeConfig, SuggestedValuesDo) {
  for (const auto& [micro, global, ranks] : {std::tuple{2, 30, 3}, {4, 24, 3}, {4, 36, 3}}) {
    RunConfig c;
    c.micro_batch_size = micro;
    c.global_batch_size = global;
    EXPECT_NO_THROW(finalize_config(c, ranks));
  }
}

TEST(RunConfig, DefaultsOfLlama) {
  EXPECT_TRUE(from_yaml("model: llama\n").untie_embeddings_and_output_weights);
  EXPECT_TRUE(from_yaml("lr: 1\n", {"--model", "llama"}).untie_embeddings_and_output_weights);
  EXPECT_FALSE(from_yaml("untie_embeddings_and_output_weights: false\nmodel: llama\n").untie_embeddings_and_output_weights);
  EXPECT_FALSE(from_yaml("model: llama\n", {"--model", "gpt"}).untie_embeddings_and_output_weights);
  const RunConfig tied = from_yaml("model: llama\nuntie_embeddings_and_output_weights: false\nnum_key_value_heads: 2\nrope_theta: 5e5\n");
  EXPECT_EQ(to_yaml(from_yaml(to_yaml(tied))), to_yaml(tied));
  EXPECT_EQ(tied.num_query_groups, 2);
  EXPECT_EQ(tied.rotary_base, 5e5);
}

TEST(RunConfig, WidthsThatFollowFromTheModel) {
  RunConfig c;
  for (const auto& [model, hidden, wanted] : std::vector<std::tuple<const char*, int64_t, int64_t>>{
           {"gpt", 768, 3072}, {"llama", 24, 64}, {"llama", 25, 128}, {"llama", 768, 2048}, {"llama", 4096, 10944}}) {
    c.model = model;
    c.hidden_size = hidden;
    EXPECT_EQ(ffn_width(c), wanted) << model << " " << hidden;
  }
  c.ffn_hidden_size = 11;
  EXPECT_EQ(ffn_width(c), 11);
  EXPECT_EQ(query_groups(c), c.num_attention_heads);
  c.num_query_groups = 2;
  EXPECT_EQ(query_groups(c), 2);
}

TEST(FinalizeConfig, RelationsBetweenKeys) {
  RunConfig heads = from_yaml("hidden_size: 100\nnum_attention_heads: 3\n");
  expect_part(refusal([&] { finalize_config(heads, 1); }),
              "num_attention_heads: found 3, wanted a divisor of hidden_size (100); hidden_size 99 or 102 would do");
  RunConfig groups = from_yaml("model: llama\nnum_attention_heads: 4\nnum_query_groups: 3\n");
  expect_part(refusal([&] { finalize_config(groups, 1); }), "num_query_groups: found 3, wanted a divisor of num_attention_heads (4)");
  RunConfig odd = from_yaml("model: llama\nhidden_size: 12\n");
  expect_part(refusal([&] { finalize_config(odd, 1); }), "num_attention_heads: found 4 of 3 elements with model llama, whose rotary embedding turns pairs");
  RunConfig rates = from_yaml("lr: 1e-5\n");
  expect_part(refusal([&] { finalize_config(rates, 1); }), "min_lr: found 0.0001, wanted at most lr (1e-05)");
  RunConfig constant = from_yaml("lr: 1e-5\nlr_decay_style: constant\n");
  EXPECT_NO_THROW(finalize_config(constant, 1));
}

struct IllegalPair {
  const char *yaml, *first, *second;
};
void PrintTo(const IllegalPair& pair, std::ostream* out) { *out << plain(pair.yaml); }
class IllegalPairs : public TestWithParam<IllegalPair> {};

TEST_P(IllegalPairs, NameBothKeys) {
  RunConfig c = from_yaml(GetParam().yaml);
  const std::string message = refusal([&] { finalize_config(c, 4); });
  expect_part(message, GetParam().first);
  expect_part(message, GetParam().second);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Table, IllegalPairs,
    ::testing::Values(IllegalPair{"model: llama\nadd_bias_linear: true\n", "add_bias_linear: found true", "model llama"},
                      IllegalPair{"rotary_base: 500\n", "rotary_base: found 500", "model gpt"},
                      IllegalPair{"norm_epsilon: 1e-6\n", "norm_epsilon: found 1e-06", "model gpt"},
                      IllegalPair{"rotary_interleaved: true\n", "rotary_interleaved: found true", "model gpt"},
                      IllegalPair{"zero_optimization.shard_size: 2\n", "zero_optimization.shard_size: found 2", "zero_optimization.stage 0"},
                      IllegalPair{"zero_optimization: {stage: 1, shard_size: 3}\n", "zero_optimization.shard_size: found 3", "4 data-parallel ranks"},
                      IllegalPair{"gradient_compression: int8\nzero_stage: 2\n", "gradient_compression: found int8", "zero_optimization.stage 2"},
                      IllegalPair{"gradient_compression: powersgd\ncommunication_data_type: bf16\n", "gradient_compression: found powersgd",
                                  "communication_data_type bf16"},
                      IllegalPair{"gradient_compression: int8\nprecision: fp16\n", "gradient_compression: found int8", "fp16.loss_scale"},
                      IllegalPair{"precision: fp64\ngrad_accum_dtype: bf16\n", "precision: found fp64", "grad_accum_dtype bf16"},
                      IllegalPair{"precision: fp64\noptimizer: adamw_8bit\n", "precision: found fp64", "optimizer adamw_8bit"}),
    ::testing::PrintToStringParamName());

TEST(LegalPairs, AreLetThrough) {
  for (const char* yaml : {"gradient_compression: int8\nprecision: fp16\nfp16.loss_scale: 128\n", "zero_stage: 3\nzero_optimization.shard_size: 2\n",
                           "precision: bf16\ngrad_accum_dtype: bf16\noptimizer: adamw_8bit\nzero_stage: 2\n"}) {
    RunConfig c = from_yaml(yaml);
    EXPECT_NO_THROW(finalize_config(c, 4)) << yaml;
  }
}

TEST(ToYaml, ReadsBackEqual) {
  RunConfig c;
  c.lr = 0.1 + 0.2;
  c.adam_eps = 1.0 / 3 * 1e-8;
  c.seed = 8999999999999999;
  c.data = "it's: \"a\" #\\ path \xc3\xa9";
  c.run_dir = "true";
  c.add_bias_linear = true;
  c.overlap_grad_reduce = false;
  const RunConfig read = from_yaml(to_yaml(c));
  for (const auto& key : config_keys()) EXPECT_EQ(get_key(read, key), get_key(c, key)) << key.name;
  EXPECT_EQ(read.lr, c.lr);
  EXPECT_EQ(read.adam_eps, c.adam_eps);
  EXPECT_EQ(read.data, c.data);
}

std::string utf8(uint32_t c) {
  const auto more = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), more(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | c >> 12), more(6), more(0)};
  return {static_cast<char>(0xf0 | c >> 18), more(12), more(6), more(0)};
}

// A path must come out as it went in, or another file would be trained on.
TEST(ToYaml, TextReadsBackByteForByteOrWasRefused) {
  int read = 0, refused = 0;
  const auto check = [&](const std::string& text) {
    RunConfig config, again;
    try {
      config = load_config("", {{"data", text}});
    } catch (const InputError&) {
      ++refused;
      return;
    }
    ASSERT_NO_THROW(read_yaml(again, "again", to_yaml(config))) << shown(text);
    ASSERT_EQ(again.data, text) << shown(text);
    ++read;
  };
  // All of the first plane's corners, then both ends of each of the others.
  for (uint32_t c = 0; c < 0x10000; c += c < 0x300 || (c > 0xd7f0 && c < 0xe010) || c > 0xfd00 ? 1 : 61) check("a" + utf8(c) + "b");
  for (uint32_t plane = 1; plane <= 0x11; ++plane) {
    for (uint32_t c = (plane << 16) - 3; c < (plane << 16) + 3; ++c) check(utf8(c));
  }
  for (const char* wrong : {"\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xc0\x80", "\xc3",
                            "\x80", "\xed\xa0\x80"}) {
    const int before = refused;
    check(wrong);
    EXPECT_EQ(refused, before + 1) << shown(wrong);
  }
  EXPECT_LT(2000, read);
}

TEST(ToYaml, ShortDoubles) { EXPECT_NE(to_yaml(RunConfig{}).find("\nlr: 0.001\n"), std::string::npos) << to_yaml(RunConfig{}); }

TEST(ConfigHelp, NamesEveryKeyWithDefault) {
  const std::string help = config_help();
  for (const auto& key : config_keys()) EXPECT_NE(help.find("--" + key.name + " "), std::string::npos) << key.name;
  EXPECT_NE(help.find("one of fp32, tf32, bf16, fp16, fp64"), std::string::npos);
}

}  // namespace
}  // namespace muster::worker
