#include "launcher/memory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "comm/base/error.h"
#include "launcher/arguments.h"
#include "worker/config/layout.h"

namespace muster::launcher {
namespace {

constexpr const char* kHelp = R"(muster memory CONFIG.yaml [-n RANKS] [--json] [--key value ...]

What each rank needs of its device's memory, part by part, with the formula; and the total for every ZeRO stage.
NCCL's and CUDA's own memory (about 1 GiB a GPU) is not in it.
)";

struct Options {
  int ranks = 1;
  bool json = false, help = false;
  RunArguments run;
};

int read_count(const std::string& option, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1 << 20) {
    refuse("{}: found '{}', wanted a whole number from 1", option, text);
  }
  return value;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  std::vector<std::string> rest;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-h" || word == "--help") {
      options.help = true;
    } else if (word == "--json") {
      options.json = true;
    } else if (word == "-n" || word == "--ranks") {
      if (i + 1 == words.size()) refuse("{}: wanted a number of ranks", word);
      options.ranks = read_count(word, words[++i]);
    } else {
      rest.push_back(word);
    }
  }
  options.run = read_run_arguments(rest);
  return options;
}

// What precedes the tokens of llm.c's files (worker/data/token_file.cc); a text never begins so.
bool begins_as_token_file(const char* bytes, size_t count) {
  int32_t magic = 0;
  if (count < sizeof magic) return false;
  std::memcpy(&magic, bytes, sizeof magic);
  return magic == 20240520 || magic == 20240801;
}

[[noreturn]] void refuse_data(const std::string& path, const std::string& found) {
  refuse("data: {}: found {}, wanted a text whose characters can be counted; or give --vocab-size N", path, found);
}

// The bytes that occur in a text, as the data set counts them. Only regular files end for sure.
int64_t characters_in(const std::string& path, bool surely_text) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) refuse_data(path, "a directory");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) refuse_data(path, "a special file");
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("data: cannot open {}: {}; or give --vocab-size N", path, std::strerror(errno));
  std::array<bool, 256> seen{};
  std::array<char, 65536> block;
  for (bool first = true; in.read(block.data(), block.size()), in.gcount() > 0; first = false) {
    if (first && !surely_text && begins_as_token_file(block.data(), static_cast<size_t>(in.gcount()))) refuse_data(path, "a token file");
    for (std::streamsize i = 0; i < in.gcount(); ++i) seen[static_cast<unsigned char>(block[i])] = true;
  }
  if (in.bad()) refuse("data: cannot read {}: {}; or give --vocab-size N", path, std::strerror(errno));
  const int64_t count = std::count(seen.begin(), seen.end(), true);
  if (count == 0) refuse_data(path, "an empty file");
  return count;
}

int64_t vocabulary(const worker::RunConfig& config) {
  if (config.vocab_size > 0) return config.vocab_size;
  const bool text = config.data_format == "text" || (config.data_format == "auto" && !config.data.ends_with(".bin"));
  if (config.data.empty()) refuse("vocab_size: found nothing, wanted --vocab-size N, or --data with a text whose characters can be counted");
  if (!text) refuse_data(config.data, "a token file");
  return characters_in(config.data, config.data_format == "text");
}

std::string mib(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)); }

sharding::MemoryPlan plan_for(worker::RunConfig config, int ranks, int64_t vocab, int stage) {
  config.zero_stage = stage;
  if (stage == 0) config.zero_shard_size = 0;
  return sharding::plan_memory(worker::memory_input(config, ranks, vocab));
}

void print_text(const sharding::MemoryPlan& plan, const worker::RunConfig& config, int ranks, int64_t vocab) {
  std::printf("rank of %d, zero_optimization.stage %d, %s, micro-batch %d x %d tokens, vocabulary %d\n\n%-18s %12s\n", ranks, static_cast<int>(config.zero_stage),
              config.precision.c_str(), static_cast<int>(config.micro_batch_size), static_cast<int>(config.seq_length), static_cast<int>(vocab), "", "MiB");
  for (const auto& part : plan.parts) std::printf("%-18s %12s   %s\n", part.name.c_str(), mib(part.bytes).c_str(), part.formula.c_str());
  std::printf("%-18s %12s\n\n%-18s", "total", mib(plan.total()).c_str(), "stage");
  for (int stage = 0; stage <= 3; ++stage) std::printf(" %12d", stage);
  for (const char* row : {"persistent", "total"}) {
    std::printf("\n%-18s", row);
    for (int stage = 0; stage <= 3; ++stage) {
      const auto other = plan_for(config, ranks, vocab, stage);
      std::printf(" %12s", mib(row[0] == 'p' ? other.persistent() : other.total()).c_str());
    }
  }
  std::printf("\n");
}

void print_json(const sharding::MemoryPlan& plan) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const auto& part : plan.parts) parts.push_back({{"name", part.name}, {"bytes", part.bytes}, {"formula", part.formula}});
  std::puts(nlohmann::ordered_json{{"parts", parts}, {"persistent_bytes", plan.persistent()}, {"total_bytes", plan.total()}}.dump(2).c_str());
}

}  // namespace

int memory(const std::vector<std::string>& words) {
  const Options options = parse(words);
  if (options.help) return std::fputs(kHelp, stdout), kExitOk;
  const auto config = checked_config(options.run, options.ranks);
  const int64_t vocab = vocabulary(config);
  const auto plan = sharding::plan_memory(worker::memory_input(config, options.ranks, vocab));
  options.json ? print_json(plan) : print_text(plan, config, options.ranks, vocab);
  return kExitOk;
}

}  // namespace muster::launcher
