#include "worker/config/run_config.h"

#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "comm/base/error.h"
#include "worker/config/config_keys.h"

namespace muster::worker {
namespace {

constexpr size_t kLargestFile = 1 << 20;

std::vector<const ConfigKey*> keys_or_refuse(const std::string& name, const std::string& where) {
  const auto keys = find_keys(name);
  if (keys.empty()) refuse("{}: unknown key '{}'; did you mean '{}'?", where, name, nearest_key(name));
  return keys;
}

// A YAML file being read: where we are, and which keys it has set.
class YamlReader {
 public:
  YamlReader(RunConfig& config, std::string path) : config_(config), path_(std::move(path)) {}

  void read() {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path_, error)) refuse("{}: found no such file, wanted a YAML configuration", path_);
    if (std::filesystem::file_size(path_, error) > kLargestFile) refuse("{}: larger than 1 MiB, wanted a YAML configuration", path_);
    try {
      read_mapping(YAML::LoadFile(path_));
    } catch (const YAML::Exception& e) {
      refuse("{}:{}:{}: not YAML: {}", path_, e.mark.line + 1, e.mark.column + 1, e.msg);
    }
  }

 private:
  std::string where(const YAML::Node& node) const { return fmt::format("{}:{}", path_, node.Mark().line + 1); }

  void read_mapping(const YAML::Node& node) {
    if (node.IsNull()) return;
    if (!node.IsMap()) refuse("{}: found {}, wanted a mapping of keys to values", where(node), node.IsSequence() ? "a list" : "a single value");
    for (const auto& entry : node) read_entry(entry.first, entry.second);
  }

  // A mapping as value is a group: it has no meaning of its own.
  void read_entry(const YAML::Node& name, const YAML::Node& value) {
    if (!name.IsScalar()) refuse("{}: found a key that is no word", where(name));
    if (value.IsMap() && find_keys(name.Scalar()).empty()) return read_mapping(value);
    for (const ConfigKey* key : keys_or_refuse(name.Scalar(), where(name))) {
      if (!value.IsScalar()) {
        refuse("{}: {}: found {}, wanted one value", where(name), key->name, value.IsNull() ? "nothing" : value.IsMap() ? "a mapping" : "a list");
      }
      const auto [earlier, fresh] = seen_.emplace(key->name, where(name));
      if (!fresh) refuse("{}: {} is already set at {}", where(name), key->name, earlier->second);
      set_key(config_, *key, value.Scalar(), where(name));
    }
  }

  RunConfig& config_;
  const std::string path_;
  std::map<std::string, std::string> seen_;
};

int64_t next_multiple(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// As YAML reads it back: quoted where a plain word would be something else.
std::string yaml_value(const RunConfig& config, const ConfigKey& key) {
  YAML::Emitter out;
  if (std::holds_alternative<std::string RunConfig::*>(key.member)) out << YAML::DoubleQuoted;
  out << get_key(config, key);
  return out.c_str();
}

}  // namespace

RunConfig load_config(const std::string& yaml_path, const std::vector<Override>& overrides) {
  RunConfig config;
  if (!yaml_path.empty()) YamlReader(config, yaml_path).read();
  for (const auto& o : overrides) {
    for (const ConfigKey* key : keys_or_refuse(o.key, "--" + o.key)) set_key(config, *key, o.value, "--" + o.key);
  }
  return config;
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
  if (c.hidden_size % c.num_attention_heads != 0) {
    refuse("num_attention_heads: found {}, wanted a divisor of hidden_size ({})", c.num_attention_heads, c.hidden_size);
  }
  const int64_t quantum = c.micro_batch_size * world_size;
  if (c.global_batch_size == 0) c.global_batch_size = quantum;
  if (c.global_batch_size % quantum != 0) {
    refuse("global_batch_size: found {}, wanted a multiple of micro_batch_size ({}) x ranks ({}) = {}; nearest: {}", c.global_batch_size,
           c.micro_batch_size, world_size, quantum, next_multiple(c.global_batch_size, quantum));
  }
  if (c.lr_decay_iters == 0) c.lr_decay_iters = c.train_iters;
  if (c.min_lr > c.lr) refuse("min_lr: found {}, wanted at most lr ({})", c.min_lr, c.lr);
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
    out += fmt::format("  --{:<38}{:<10} {}{}{}\n", key.name, value.empty() ? "''" : value, key.help, key.help.empty() || key.unit.empty() ? "" : ", ",
                       key.unit);
    if (!key.choices.empty()) out += fmt::format("  {:<50} one of {}\n", "", fmt::join(key.choices, ", "));
  }
  return out;
}

}  // namespace muster::worker
