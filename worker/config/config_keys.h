#pragma once
// The table of keys: one row each, from which parsing, checking, printing and help all follow.

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "worker/config/run_config.h"

namespace muster::worker {

struct ConfigKey {
  using Member = std::variant<int64_t RunConfig::*, double RunConfig::*, bool RunConfig::*, std::string RunConfig::*>;
  std::string name, group;
  Member member;
  std::string unit, help;
  double low = 0, high = 0;          // inclusive bounds of numbers; unit "seconds" also reads 500ms, 30s, 10m, 2h
  bool open_high = false;            // high itself is refused
  std::vector<std::string> choices;  // of strings; empty: any
};

const std::vector<ConfigKey>& config_keys();

struct ConfigAlias {
  std::string alias;
  std::vector<std::string> keys;  // all of them get the value
};
const std::vector<ConfigAlias>& config_aliases();

// Keys that `name` stands for (dashes count as underscores); empty where it is unknown.
std::vector<const ConfigKey*> find_keys(std::string_view name);
// The same; logs (debug) what an alias stands for. InputError("<where>: unknown key ...").
std::vector<const ConfigKey*> find_keys_or_refuse(const std::string& name, const std::string& where);
// "unknown key 'lerning_rate'; did you mean 'learning_rate' (lr)?", or where to look when nothing is near.
std::string unknown_key_message(std::string_view name);

// Control characters escaped and long text cut, so that a message stays one line.
std::string shown(std::string_view text);

// Sets the key from text. InputError("<where>: <key>: found '…', wanted …").
void set_key(RunConfig& config, const ConfigKey& key, const std::string& text, const std::string& where);
// As set_key reads it; doubles with as few digits as read back exactly.
std::string get_key(const RunConfig& config, const ConfigKey& key);

}  // namespace muster::worker
