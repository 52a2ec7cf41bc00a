// Mutated configurations: read, or refused with an InputError of one line; nothing else.

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "worker/config/config_keys.h"
#include "worker/config/yaml_reader.h"

namespace muster::worker {
namespace {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {
    for (const auto& key : config_keys()) words_.push_back(key.name);
    for (const auto& alias : config_aliases()) words_.push_back(alias.alias);
    for (const char* w : {": ",          "\n",   "  ",     "{", "}",    "[",    "]",   "- ",    "&a ",
                          "*a",          "? ",   "!!int ", "'", "\"",   "|\n",  ">\n", "---\n", "...\n",
                          "%YAML 9.9\n", "\t",   "<<",     "~", "null", ".inf", "-0",  "1e400", "9223372036854775808",
                          "true",        "\xff", "\xc3",   "#", ",",    "@",    "`",   "\\x"}) {
      words_.push_back(w);
    }
    words_.push_back(std::string(1, '\0'));
  }

  std::string operator()(std::string text) {
    for (uint64_t n = 1 + random_() % 8; n > 0; --n) mutate(text);
    return text;
  }

 private:
  void mutate(std::string& text) {
    const size_t at = text.empty() ? 0 : random_() % text.size();
    switch (random_() % 5) {
      case 0:
        text.insert(at, words_[random_() % words_.size()]);
        break;
      case 1:
        text.erase(at, random_() % 20);
        break;
      case 2:
        text.insert(at, text.substr(random_() % (text.size() + 1), random_() % 40));
        break;
      case 3:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        break;
      default:
        text.replace(at, random_() % 10, words_[random_() % words_.size()]);
        break;
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

const char* const kSeeds[] = {
    "model: gpt\nnum_layers: 4\nlr: 1e-3\ndata: \"a.txt\"\n",
    "model: {num_layers: 4, n_head: 2}\noptimizer:\n  lr: 1e-3\n  betas: &a [0.9, 0.99]\ntrain_iters: 2000  # steps\n",
    "a: &a {lr: 1}\nb: *a\n",
    "",
};

TEST(FuzzConfig, TwentyThousandMutatedDocuments) {
  Mutator mutate(20240520);
  int read = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = mutate(kSeeds[i % std::size(kSeeds)]);
    try {
      RunConfig config;
      read_yaml(config, "fuzz", text);
      RunConfig again;
      read_yaml(again, "again", to_yaml(config));
      ASSERT_EQ(to_yaml(again), to_yaml(config)) << text;
      ++read;
    } catch (const InputError& e) {
      ASSERT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what() << "\n" << text;
      ++refused;
    } catch (const std::exception& e) {
      FAIL() << "not an InputError: " << e.what() << "\n" << text;
    }
  }
  // Both ways are walked.
  EXPECT_LT(200, read);
  EXPECT_LT(2000, refused);
}

TEST(FuzzConfig, WhatIsReadSurvivesToYaml) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    RunConfig config;
    config.lr = std::ldexp(static_cast<double>(random() >> 11), -53);
    config.weight_decay = std::ldexp(static_cast<double>(random() >> 11), -70);
    config.seed = static_cast<int64_t>(random() % 9000000000000000);
    for (uint64_t n = random() % 20; n > 0; --n) config.data += static_cast<char>(0x20 + random() % 0x5f);
    RunConfig again;
    read_yaml(again, "again", to_yaml(config));
    ASSERT_EQ(again.lr, config.lr);
    ASSERT_EQ(again.weight_decay, config.weight_decay);
    ASSERT_EQ(again.seed, config.seed);
    ASSERT_EQ(again.data, config.data);
  }
}

}  // namespace
}  // namespace muster::worker
