#include "worker/config/run_config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "comm/base/error.h"
#include "worker/config/config_keys.h"
#include "worker/config/layout.h"
#include "worker/config/yaml_reader.h"

namespace muster::worker {
namespace {

constexpr size_t kLargestFile = 1 << 20;  // bytes

std::string read_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse("{}: found a directory, wanted a YAML configuration", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse("{}: cannot open: {}; wanted a YAML configuration", path, std::strerror(errno));
  std::string text;
  char block[4096];
  while (text.size() <= kLargestFile && (in.read(block, sizeof block), in.gcount() > 0))
    text.append(block, static_cast<size_t>(in.gcount()));
  if (text.size() > kLargestFile) refuse("{}: larger than 1 MiB, wanted a YAML configuration", path);
  return text;
}

// "24 or 48": the multiples of `of` around n.
std::string nearest_multiples(int64_t n, int64_t of) {
  const int64_t below = n / of * of;
  return below == 0 ? fmt::format("{}", of) : fmt::format("{} or {}", below, below + of);
}

// The largest micro-batch, not above the present one, with which this global batch works.
std::string micro_batch_hint(const RunConfig& c, int world_size) {
  if (c.global_batch_size % world_size != 0) return "";
  const int64_t share = c.global_batch_size / world_size;
  int64_t micro = std::min(c.micro_batch_size, share);
  while (share % micro != 0) --micro;
  return fmt::format(", or micro_batch_size {}", micro);
}

// As YAML reads it back: quoted where a plain word would be something else.
std::string yaml_value(const RunConfig& config, const ConfigKey& key) {
  YAML::Emitter out;
  if (std::holds_alternative<std::string RunConfig::*>(key.member)) out << YAML::DoubleQuoted;
  out << get_key(config, key);
  return out.c_str();
}

RunConfig defaults_of(const std::string& model) {
  RunConfig config;
  config.untie_embeddings_and_output_weights = model == "llama";
  return config;
}

// What the model would not use, or could not.
void refuse_wrong_model_keys(const RunConfig& c) {
  const RunConfig usual;
  if (c.hidden_size % c.num_attention_heads != 0) {
    refuse("num_attention_heads: found {}, wanted a divisor of hidden_size ({}); hidden_size {} would do", c.num_attention_heads,
           c.hidden_size, nearest_multiples(c.hidden_size, c.num_attention_heads));
  }
  if (c.num_attention_heads % query_groups(c) != 0) {
    refuse("num_query_groups: found {}, wanted a divisor of num_attention_heads ({})", c.num_query_groups, c.num_attention_heads);
  }
  if (c.model == "llama") {
    if (c.add_bias_linear) refuse("add_bias_linear: found true with model llama, which has no biases; wanted false, or model gpt");
    if (c.hidden_size / c.num_attention_heads % 2 != 0) {
      refuse("num_attention_heads: found {} of {} elements with model llama, whose rotary embedding turns pairs; wanted an even width of a head",
             c.num_attention_heads, c.hidden_size / c.num_attention_heads);
    }
    return;
  }
  for (const char* key : {"norm_epsilon", "rotary_base", "rotary_interleaved"}) {
    const ConfigKey& row = *find_keys(key).front();
    if (get_key(c, row) != get_key(usual, row)) refuse("{}: found {} with model {}, which does not use it; wanted model llama", key, get_key(c, row), c.model);
  }
}

// Both keys and the reason.
void refuse_illegal_pairs(const RunConfig& c) {
  if (c.zero_stage == 0 && c.zero_shard_size > 0) {
    refuse("zero_optimization.shard_size: found {} with zero_optimization.stage 0, where nothing is sharded; wanted stage 1, 2 or 3", c.zero_shard_size);
  }
  if (c.gradient_compression != "none" && c.zero_stage > 0) {
    refuse("gradient_compression: found {} with zero_optimization.stage {}; its error feedback needs whole gradients on every rank: wanted stage 0, or none",
           c.gradient_compression, c.zero_stage);
  }
  if (c.gradient_compression != "none" && c.communication_data_type != "auto") {
    refuse("gradient_compression: found {} with communication_data_type {}; both say how gradients travel: wanted one of them", c.gradient_compression,
           c.communication_data_type);
  }
  if (c.gradient_compression != "none" && c.precision == "fp16" && c.fp16_loss_scale == 0) {
    refuse("gradient_compression: found {} with precision fp16 and a dynamic loss scale, which its kept errors would not follow; wanted fp16.loss_scale, "
           "bf16, or none",
           c.gradient_compression);
  }
  if (c.precision == "fp64" && (c.grad_accum_dtype != "auto" || c.optimizer == "adamw_8bit")) {
    refuse("precision: found fp64 with {}, which would lose what it is for; wanted fp32, or {}",
           c.optimizer == "adamw_8bit" ? "optimizer adamw_8bit" : "grad_accum_dtype " + c.grad_accum_dtype,
           c.optimizer == "adamw_8bit" ? "optimizer adamw" : "grad_accum_dtype auto");
  }
}

}  // namespace

RunConfig load_config(const std::string& yaml_path, const std::vector<Override>& overrides) {
  const std::string yaml = yaml_path.empty() ? "" : read_file(yaml_path);
  const auto read_over = [&](RunConfig config) {
    if (!yaml_path.empty()) read_yaml(config, yaml_path, yaml);
    for (const auto& o : overrides) {
      for (const ConfigKey* key : find_keys_or_refuse(o.key, "--" + o.key)) set_key(config, *key, o.value, "--" + o.key);
    }
    return config;
  };
  const RunConfig config = read_over({});
  return config.model == "gpt" ? config : read_over(defaults_of(config.model));
}

std::vector<Override> parse_overrides(const std::vector<std::string>& arguments) {
  std::vector<Override> overrides;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--") || word.size() == 2) refuse("command line: found '{}', wanted --key value", word);
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      overrides.push_back({word.substr(2, equals - 2), word.substr(equals + 1)});
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      overrides.push_back({word.substr(2), arguments[++i]});
    } else {
      overrides.push_back({word.substr(2), "true"});
    }
  }
  return overrides;
}

void finalize_config(RunConfig& c, int world_size) {
  MUSTER_CHECK_LT(0, world_size);
  refuse_wrong_model_keys(c);
  const int64_t quantum = c.micro_batch_size * world_size;
  if (c.global_batch_size == 0) c.global_batch_size = quantum;
  if (c.global_batch_size % quantum != 0) {
    refuse("global_batch_size: found {}, wanted a multiple of micro_batch_size ({}) x ranks ({}) = {}; {} would do{}",
           c.global_batch_size, c.micro_batch_size, world_size, quantum, nearest_multiples(c.global_batch_size, quantum),
           micro_batch_hint(c, world_size));
  }
  mesh_sizes(c, world_size);
  refuse_illegal_pairs(c);
  if (c.lr_decay_iters == 0) c.lr_decay_iters = c.train_iters;
  if (c.min_lr > c.lr && c.lr_decay_style != "constant") refuse("min_lr: found {}, wanted at most lr ({})", c.min_lr, c.lr);
}

std::string to_yaml(const RunConfig& config) {
  std::string out;
  for (const auto& key : config_keys()) out += fmt::format("{}: {}\n", key.name, yaml_value(config, key));
  return out;
}

std::string config_help() {
  const RunConfig defaults;
  std::string out, group;
  for (const auto& key : config_keys()) {
    if (key.group != group) out += fmt::format("{}{}:\n", group.empty() ? "" : "\n", group = key.group);
    const std::string value = get_key(defaults, key);
    out += fmt::format("  --{:<38}{:<10} {}{}{}\n", key.name, value.empty() ? "''" : value, key.help,
                       key.help.empty() || key.unit.empty() ? "" : ", ", key.unit);
    if (!key.choices.empty()) out += fmt::format("  {:<50} one of {}\n", "", fmt::join(key.choices, ", "));
  }
  return out;
}

}  // namespace muster::worker
