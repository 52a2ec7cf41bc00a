#include "worker/config/config_keys.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "comm/base/error.h"
#include "comm/base/log.h"

namespace muster::worker {
namespace {

constexpr double kMax = 9.0e15;  // integers beyond are refused: they would not survive a double

template <typename M>
ConfigKey number(std::string group, std::string name, M member, double low, double high, std::string unit, std::string help,
                 bool open_high = false) {
  return {std::move(name), std::move(group), member, std::move(unit), std::move(help), low, high, open_high, {}};
}
ConfigKey flag(std::string group, std::string name, bool RunConfig::*member, std::string help) {
  return {std::move(name), std::move(group), member, "", std::move(help), 0, 0, false, {}};
}
ConfigKey word(std::string group, std::string name, std::string RunConfig::*member, std::string help,
               std::vector<std::string> choices = {}) {
  return {std::move(name), std::move(group), member, "", std::move(help), 0, 0, false, std::move(choices)};
}

std::vector<ConfigKey> build_keys() {
  using C = RunConfig;
  return {
      word("model", "model", &C::model, "architecture", {"gpt", "llama"}),
      number("model", "num_layers", &C::num_layers, 1, 10000, "", "transformer blocks"),
      number("model", "num_attention_heads", &C::num_attention_heads, 1, 10000, "", "attention heads; must divide hidden_size"),
      number("model", "num_query_groups", &C::num_query_groups, 0, 10000, "",
             "heads of keys and values; must divide num_attention_heads; 0: num_attention_heads"),
      number("model", "hidden_size", &C::hidden_size, 1, 1 << 20, "", "width of the residual stream"),
      number("model", "ffn_hidden_size", &C::ffn_hidden_size, 0, 1 << 24, "",
             "width inside the MLP; 0: 4 hidden_size (llama: 8/3 hidden_size up to a multiple of 64)"),
      number("model", "seq_length", &C::seq_length, 1, 1 << 24, "tokens", "context"),
      number("model", "vocab_size", &C::vocab_size, 0, 1 << 30, "tokens", "0: from the data"),
      number("model", "hidden_dropout", &C::hidden_dropout, 0, 1, "",
             "dropout of embeddings and of what blocks add to the residual stream", true),
      number("model", "attention_dropout", &C::attention_dropout, 0, 1, "", "dropout of attention probabilities", true),
      flag("model", "add_bias_linear", &C::add_bias_linear, "bias in linear layers and layer norms"),
      flag("model", "untie_embeddings_and_output_weights", &C::untie_embeddings_and_output_weights,
           "a head of its own; with model llama the default is true"),
      number("model", "norm_epsilon", &C::norm_epsilon, 0, 1, "", "of llama's norms"),
      number("model", "rotary_base", &C::rotary_base, 1, 1e12, "", "of llama's rotary embedding"),
      flag("model", "rotary_interleaved", &C::rotary_interleaved, "llama turns pairs of neighbours, not of halves of a head"),
      word("data", "data", &C::data, "text file, or token file of the training part"),
      word("data", "val_data", &C::val_data, "token file of the validation part; empty: the end of data"),
      word("data", "data_format", &C::data_format, "what data is", {"auto", "text", "uint16", "llmc"}),
      number("data", "val_fraction", &C::val_fraction, 0, 1, "", "part of data kept for validation", true),
      number("batch", "micro_batch_size", &C::micro_batch_size, 1, 1 << 24, "sequences", "of a rank and forward pass"),
      number("batch", "global_batch_size", &C::global_batch_size, 0, 1 << 30, "sequences",
             "of a step over all ranks; 0: micro_batch_size * ranks"),
      word("optimizer", "optimizer", &C::optimizer, "", {"adamw", "adamw_8bit", "sgd", "lion", "muon"}),
      number("optimizer", "lr", &C::lr, 0, 1e6, "", "highest learning rate"),
      number("optimizer", "min_lr", &C::min_lr, 0, 1e6, "", "learning rate after the decay"),
      word("optimizer", "lr_decay_style", &C::lr_decay_style, "", {"cosine", "linear", "constant"}),
      number("optimizer", "lr_warmup_iters", &C::lr_warmup_iters, 0, kMax, "steps", "linear warm-up"),
      number("optimizer", "lr_decay_iters", &C::lr_decay_iters, 0, kMax, "steps", "end of the decay; 0: train_iters"),
      number("optimizer", "weight_decay", &C::weight_decay, 0, 1e6, "", "of matrices and embeddings"),
      number("optimizer", "adam_beta1", &C::adam_beta1, 0, 1, "", "", true),
      number("optimizer", "adam_beta2", &C::adam_beta2, 0, 1, "", "", true),
      number("optimizer", "adam_eps", &C::adam_eps, 0, 1, "", ""),
      number("optimizer", "sgd_momentum", &C::sgd_momentum, 0, 1, "", "of sgd", true),
      number("optimizer", "muon_momentum", &C::muon_momentum, 0, 1, "", "of muon", true),
      number("optimizer", "clip_grad", &C::clip_grad, 0, 1e30, "", "largest global gradient norm; 0: off"),
      number("optimizer", "train_iters", &C::train_iters, 1, kMax, "steps", ""),
      number("optimizer", "seed", &C::seed, 0, kMax, "", "of weights, data order and dropout"),
      number("output", "eval_interval", &C::eval_interval, 0, kMax, "steps", "between evaluations; 0: only at the end"),
      number("output", "eval_iters", &C::eval_iters, 0, kMax, "global batches", "of an evaluation; 0: the whole validation part"),
      number("output", "log_interval", &C::log_interval, 1, kMax, "steps", "between progress rows"),
      number("output", "sample_tokens", &C::sample_tokens, 0, 1 << 24, "tokens", "of sample text at the end"),
      word("output", "run_dir", &C::run_dir, "run folder; empty: runs/<date>-<time>-<pid>"),
      word("machine", "device", &C::device, "", {"auto", "cpu", "cuda"}),
      word("machine", "precision", &C::precision, "see docs/numbers.md", {"fp32", "tf32", "bf16", "fp16", "fp64"}),
      word("machine", "backend", &C::backend, "of collectives", {"auto", "nccl", "host"}),
      number("machine", "threads", &C::threads, 0, 4096, "", "CPU threads of a rank; 0: cores / ranks of this node"),
      number("machine", "comm_timeout_s", &C::comm_timeout_s, 0.1, 1e6, "seconds", "of one collective"),
      number("machine", "start_timeout_s", &C::start_timeout_s, 0.1, 1e6, "seconds", "of one exchange at start"),
      word("precision", "grad_accum_dtype", &C::grad_accum_dtype, "of gradient buffers; auto: float32, float64 with fp64", {"auto", "fp32", "bf16"}),
      word("precision", "communication_data_type", &C::communication_data_type, "gradients travel as; auto: as they are",
           {"auto", "fp32", "bf16", "fp16"}),
      number("precision", "fp16.loss_scale", &C::fp16_loss_scale, 0, 1e30, "", "constant; 0: dynamic"),
      number("precision", "fp16.initial_scale_power", &C::fp16_initial_scale_power, 0, 60, "", "the dynamic scale starts at 2 to this"),
      number("precision", "fp16.loss_scale_window", &C::fp16_loss_scale_window, 1, kMax, "steps", "without overflow until the scale doubles"),
      number("precision", "fp16.hysteresis", &C::fp16_hysteresis, 1, kMax, "steps", "with overflow until the scale halves"),
      flag("precision", "fp16.consecutive_hysteresis", &C::fp16_consecutive_hysteresis, "any finite step restores the hysteresis"),
      number("precision", "fp16.min_loss_scale", &C::fp16_min_loss_scale, 1e-30, 1e30, "", "lowest dynamic scale"),
      number("precision", "max_skipped_steps", &C::max_skipped_steps, 1, kMax, "steps",
             "in a row whose gradients are not finite, until the run ends"),
      number("data parallel", "reduce_bucket_size_mb", &C::reduce_bucket_size_mb, 0, 1e6, "MiB", "of a gradient bucket"),
      number("data parallel", "first_bucket_size_mb", &C::first_bucket_size_mb, 0, 1e6, "MiB", "of the first bucket"),
      flag("data parallel", "overlap_grad_reduce", &C::overlap_grad_reduce, "reduce gradients while the backward pass runs"),
      word("data parallel", "gradient_compression", &C::gradient_compression, "of the exchange, with error feedback; stage 0 only",
           {"none", "int8", "powersgd"}),
      number("data parallel", "powersgd_rank", &C::powersgd_rank, 1, 1024, "", "columns that a matrix gradient is squeezed into"),
      number("data parallel", "zero_optimization.stage", &C::zero_stage, 0, 3, "",
             "sharded over the ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too"),
      number("data parallel", "zero_optimization.shard_size", &C::zero_shard_size, 0, 1 << 20, "ranks",
             "that shard together, replicated across; 0: all"),
      flag("data parallel", "zero_optimization.offload_optimizer", &C::offload_optimizer, "keep optimizer state in the host's memory"),
      word("memory", "recompute.granularity", &C::recompute_granularity, "activations computed again in the backward pass",
           {"none", "selective", "full"}),
  };
}

std::string canonical(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return x == y || (x == '-' && y == '_'); });
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int kept = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = kept;
    }
  }
  return row[b.size()];
}

// A character that YAML and JSON carry unchanged: shortest form, no surrogate, none of Unicode's noncharacters.
bool carried(uint32_t c, size_t more) {
  constexpr uint32_t kShortest[] = {0, 0x80, 0x800, 0x10000};
  const bool surrogate = c >= 0xd800 && c < 0xe000, noncharacter = (c & 0xfffe) == 0xfffe || (c >= 0xfdd0 && c < 0xfdf0);
  return c >= kShortest[more] && c < 0x110000 && !surrogate && !noncharacter;
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int ones = std::countl_one(first);
    if (ones == 1 || ones > 4) return false;
    const size_t more = ones == 0 ? 0 : ones - 1;
    if (i + more >= text.size()) return false;
    uint32_t c = ones == 0 ? first : first & (0x7f >> ones);
    for (size_t j = 0; j < more; ++j) {
      const auto next = static_cast<unsigned char>(text[++i]);
      if ((next & 0xc0) != 0x80) return false;
      c = c << 6 | (next & 0x3f);
    }
    if (!carried(c, more)) return false;
  }
  return true;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Keys that other programs set and that follow from others here.
std::string derived_key_hint(const std::string& name) {
  if (name == "gradient_accumulation_steps")
    return "it follows from global_batch_size / (micro_batch_size x ranks); set global_batch_size";
  if (name == "decay_lr") return "set lr_decay_style (cosine, linear, constant)";
  if (name == "world_size" || name == "data_parallel_size") return "it is the number of ranks: muster launch -n N";
  return "";
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "30", "30s", "500ms", "10m", "2h" in seconds.
std::optional<double> parse_seconds(std::string text) {
  constexpr std::pair<const char*, double> kUnits[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  for (const auto& [suffix, seconds] : kUnits) {
    if (!text.ends_with(suffix)) continue;
    const auto value = parse_number<double>(text.substr(0, text.size() - std::char_traits<char>::length(suffix)));
    return value ? std::optional<double>(*value * seconds) : std::nullopt;
  }
  return parse_number<double>(text);
}

template <typename T>
std::optional<T> parse_value(const ConfigKey& key, const std::string& text) {
  if constexpr (std::is_same_v<T, double>) {
    if (key.unit == "seconds") return parse_seconds(text);
  }
  return parse_number<T>(text);
}

// "run.yaml:3: lr", but "--lr" alone.
std::string subject(const ConfigKey& key, const std::string& where) {
  return canonical(where) == "__" + key.name ? where : fmt::format("{}: {}", where, key.name);
}

std::string range_of(const ConfigKey& key) { return fmt::format("in [{}, {}{}", key.low, key.high, key.open_high ? ")" : "]"); }

template <typename T>
T checked_number(const ConfigKey& key, const std::string& text, const std::string& where) {
  const auto value = parse_value<T>(key, text);
  const double v = value ? static_cast<double>(*value) : std::numeric_limits<double>::quiet_NaN();
  if (!std::isfinite(v) || v < key.low || v > key.high || (key.open_high && v >= key.high)) {
    const char* type = std::is_same_v<T, double> ? "a number" : "a whole number";
    refuse("{}: found '{}', wanted {} {}{}", subject(key, where), shown(text), type, range_of(key),
           key.unit.empty() ? "" : " (" + key.unit + ")");
  }
  return *value;
}

bool parse_flag(const ConfigKey& key, const std::string& text, const std::string& where) {
  for (const char* yes : {"true", "True", "on", "yes", "1"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "False", "off", "no", "0"}) {
    if (text == no) return false;
  }
  refuse("{}: found '{}', wanted true or false", subject(key, where), shown(text));
}

std::string checked_word(const ConfigKey& key, const std::string& text, const std::string& where) {
  if (!key.choices.empty() && std::find(key.choices.begin(), key.choices.end(), text) == key.choices.end()) {
    refuse("{}: found '{}', wanted {}{}", subject(key, where), shown(text), key.choices.size() > 1 ? "one of " : "",
           fmt::join(key.choices, ", "));
  }
  if (!valid_utf8(text) || std::any_of(text.begin(), text.end(), is_control)) {
    refuse("{}: found '{}', wanted UTF-8 text without control characters", subject(key, where), shown(text));
  }
  return text;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = build_keys();
  return keys;
}

const std::vector<ConfigAlias>& config_aliases() {
  static const std::vector<ConfigAlias> aliases = {
      {"n_layer", {"num_layers"}},
      {"n_head", {"num_attention_heads"}},
      {"n_embd", {"hidden_size"}},
      {"block_size", {"seq_length"}},
      {"dropout", {"hidden_dropout", "attention_dropout"}},
      {"bias", {"add_bias_linear"}},
      {"batch_size", {"micro_batch_size"}},
      {"learning_rate", {"lr"}},
      {"max_iters", {"train_iters"}},
      {"warmup_iters", {"lr_warmup_iters"}},
      {"beta1", {"adam_beta1"}},
      {"beta2", {"adam_beta2"}},
      {"grad_clip", {"clip_grad"}},
      {"gradient_clipping", {"clip_grad"}},
      {"max_grad_norm", {"clip_grad"}},
      {"num_hidden_layers", {"num_layers"}},
      {"num_key_value_heads", {"num_query_groups"}},
      {"intermediate_size", {"ffn_hidden_size"}},
      {"rms_norm_eps", {"norm_epsilon"}},
      {"rope_theta", {"rotary_base"}},
      {"bucket_cap_mb", {"reduce_bucket_size_mb"}},
      {"stage", {"zero_optimization.stage"}},
      {"zero_stage", {"zero_optimization.stage"}},
      {"dtype", {"precision"}},
      {"out_dir", {"run_dir"}},
      {"train_batch_size", {"global_batch_size"}},
      {"train_micro_batch_size_per_gpu", {"micro_batch_size"}},
  };
  return aliases;
}

std::vector<const ConfigKey*> find_keys(std::string_view name) {
  std::vector<std::string> wanted = {canonical(name)};
  for (const auto& alias : config_aliases()) {
    if (alias.alias == wanted[0]) {
      wanted = alias.keys;
      break;
    }
  }
  std::vector<const ConfigKey*> found;
  for (const auto& key : config_keys()) {
    if (std::find(wanted.begin(), wanted.end(), key.name) != wanted.end()) found.push_back(&key);
  }
  if (!found.empty()) return found;
  for (const auto& key : config_keys()) {  // "fp16.hysteresis" as "hysteresis", in a group fp16 or without
    if (key.name.ends_with("." + wanted[0])) found.push_back(&key);
  }
  return found;
}

std::vector<const ConfigKey*> find_keys_or_refuse(const std::string& name, const std::string& where) {
  const auto keys = find_keys(name);
  if (keys.empty()) refuse("{}: {}", where, unknown_key_message(name));
  if (!same_name(name, keys[0]->name)) {
    for (const ConfigKey* key : keys) log_debug("{}: {} is {}", where, name, key->name);
  }
  return keys;
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const bool plain = !is_control(c) && static_cast<unsigned char>(c) < 0x80;
    out += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text.size() > kLongest ? out + "..." : out;
}

std::string unknown_key_message(std::string_view name) {
  const std::string wanted = canonical(name.substr(0, 64));
  const std::string unknown = fmt::format("unknown key '{}'", shown(name));
  if (const std::string hint = derived_key_hint(wanted); !hint.empty()) return unknown + "; " + hint;
  int best_distance = std::max<int>(1, static_cast<int>(wanted.size()) / 2) + 1;
  std::string best;
  const auto offer = [&](const std::string& candidate, const std::string& shown_as) {
    const int d = edit_distance(wanted, candidate);
    if (d < best_distance) best = shown_as, best_distance = d;
  };
  for (const auto& key : config_keys()) offer(key.name, fmt::format("'{}'", key.name));
  for (const auto& alias : config_aliases())
    offer(alias.alias, fmt::format("'{}' ({})", alias.alias, fmt::join(alias.keys, ", ")));
  return best.empty() ? unknown + "; docs/configuration.md lists all keys" : fmt::format("{}; did you mean {}?", unknown, best);
}

void set_key(RunConfig& config, const ConfigKey& key, const std::string& text, const std::string& where) {
  if (auto* m = std::get_if<int64_t RunConfig::*>(&key.member)) {
    config.*(*m) = checked_number<int64_t>(key, text, where);
  } else if (auto* d = std::get_if<double RunConfig::*>(&key.member)) {
    config.*(*d) = checked_number<double>(key, text, where);
  } else if (auto* b = std::get_if<bool RunConfig::*>(&key.member)) {
    config.*(*b) = parse_flag(key, text, where);
  } else {
    config.*std::get<std::string RunConfig::*>(key.member) = checked_word(key, text, where);
  }
}

std::string get_key(const RunConfig& config, const ConfigKey& key) {
  return std::visit([&](auto member) { return fmt::format("{}", config.*member); }, key.member);
}

}  // namespace muster::worker
