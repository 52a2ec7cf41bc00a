#pragma once
// The run's configuration: one flat table of keys, from YAML and the command line, checked once and then constant.
// No LibTorch here: the launcher reads it too.

#include <cstdint>
#include <string>
#include <vector>

namespace muster::worker {

// Every field is a key of the same name ("data" in YAML, "--data" on the command line). Names follow Megatron-LM and
// DeepSpeed; aliases of nanoGPT and others are accepted and mapped to these (config_keys.cc).
struct RunConfig {
  // model
  std::string model = "gpt";            // gpt, llama
  int64_t num_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_query_groups = 0;         // heads of keys and values, each for as many heads of queries; 0: num_attention_heads
  int64_t hidden_size = 128;
  int64_t ffn_hidden_size = 0;          // width inside the MLP; 0: see ffn_width
  int64_t seq_length = 64;              // tokens
  int64_t vocab_size = 0;               // 0: from the data
  double hidden_dropout = 0.0;
  double attention_dropout = 0.0;
  bool add_bias_linear = false;         // bias in linear layers and layer norms
  bool untie_embeddings_and_output_weights = false;  // load_config: true with llama
  double norm_epsilon = 1e-5;           // of llama's RMS norms
  double rotary_base = 10000;           // of llama
  bool rotary_interleaved = false;      // pairs that turn are neighbours, else half a head apart
  // data
  std::string data;                     // text file, or token file (training part)
  std::string val_data;                 // token file of the validation part; empty: the last val_fraction of data
  std::string data_format = "auto";     // auto, text, uint16 (headerless), llmc
  double val_fraction = 0.1;
  // batch
  int64_t micro_batch_size = 12;        // sequences a rank and forward pass
  int64_t global_batch_size = 0;        // sequences a step over all ranks; 0: micro_batch_size * ranks
  // optimizer and schedule
  std::string optimizer = "adamw";      // adamw, adamw_8bit, sgd, lion, muon
  double lr = 1e-3, min_lr = 1e-4;
  std::string lr_decay_style = "cosine";  // cosine, linear, constant
  int64_t lr_warmup_iters = 100, lr_decay_iters = 0;  // 0: train_iters
  double weight_decay = 0.1, adam_beta1 = 0.9, adam_beta2 = 0.99, adam_eps = 1e-8;
  double clip_grad = 1.0;               // global norm; 0: off
  int64_t train_iters = 2000;
  int64_t seed = 1337;
  // evaluation and output
  int64_t eval_interval = 250;          // steps; 0: only at the end
  int64_t eval_iters = 20;              // global batches an evaluation; 0: the whole validation part
  int64_t log_interval = 10;            // steps between progress lines
  int64_t sample_tokens = 200;          // tokens of sample text at the end; 0: none
  std::string run_dir;                  // empty: runs/<date>-<time>-<pid>
  // machine
  std::string device = "auto";          // auto, cpu, cuda
  std::string precision = "fp32";       // fp32, tf32, bf16, fp16, fp64
  std::string backend = "auto";         // auto, nccl, host
  int64_t threads = 0;                  // CPU threads a rank; 0: cores / ranks of this node, at least 1
  double comm_timeout_s = 600;          // of one collective
  double start_timeout_s = 120;         // of one exchange at start
  // precision
  std::string grad_accum_dtype = "auto";         // of gradient buffers: auto (float32; float64 with fp64), fp32, bf16
  std::string communication_data_type = "auto";  // gradients travel as: auto (as they are), fp32, bf16, fp16
  double fp16_loss_scale = 0;                    // "fp16.loss_scale": constant; 0: dynamic
  int64_t fp16_initial_scale_power = 16;         // "fp16.initial_scale_power"
  int64_t fp16_loss_scale_window = 1000;         // steps
  int64_t fp16_hysteresis = 2;                   // steps
  bool fp16_consecutive_hysteresis = false;
  double fp16_min_loss_scale = 1;
  int64_t max_skipped_steps = 20;                // in a row, with gradients that are not finite; then the run ends
  // data parallel
  double reduce_bucket_size_mb = 25;    // MiB
  double first_bucket_size_mb = 1;      // MiB
  bool overlap_grad_reduce = true;
  std::string gradient_compression = "none";  // none, int8, powersgd
  int64_t powersgd_rank = 4;
  double sgd_momentum = 0.9, muon_momentum = 0.95;
  int64_t zero_stage = 0;               // "zero_optimization.stage": 0 replicate; sharded: 1 optimizer state, 2 and gradients, 3 and parameters
  int64_t zero_shard_size = 0;          // "zero_optimization.shard_size": ranks that shard together, replicated across; 0: all
  bool offload_optimizer = false;       // "zero_optimization.offload_optimizer": optimizer state in host memory
  // memory
  std::string recompute_granularity = "none";  // "recompute.granularity": none, selective, full
};

// Where a value came from, for messages: "run.yaml:12", "--lr".
struct Override {
  std::string key, value;
};

// Reads `yaml_path` (may be empty: defaults only), then applies `overrides` (command line; they win), resolves aliases,
// checks types and single-key ranges. Defaults that depend on the model are in place before. InputError: unknown key (nearest named), wrong type, missing file, out of range;
// the message starts with file:line or --key.
RunConfig load_config(const std::string& yaml_path, const std::vector<Override>& overrides);

// Splits "--key value", "--key=value" and bare "--flag" (true) into overrides. InputError on a positional word.
std::vector<Override> parse_overrides(const std::vector<std::string>& arguments);

// The checks that need the number of ranks: global batch divisible by ranks * micro-batch (three numbers shown), heads
// divide hidden_size, ... Fills in derived defaults (global_batch_size, lr_decay_iters).
void finalize_config(RunConfig& config, int world_size);

// The whole configuration as YAML that load_config reads back to an equal one.
std::string to_yaml(const RunConfig& config);

// One line a key: name, type, default, unit, help; for --help.
std::string config_help();

// Heads of keys and of values.
inline int64_t query_groups(const RunConfig& c) { return c.num_query_groups > 0 ? c.num_query_groups : c.num_attention_heads; }

// Inside the MLP: ffn_hidden_size, or 4 hidden_size; with llama, whose MLP has three matrices, 8/3 hidden_size up to a multiple of 64.
inline int64_t ffn_width(const RunConfig& c) {
  if (c.ffn_hidden_size > 0) return c.ffn_hidden_size;
  return c.model == "llama" ? (8 * c.hidden_size + 191) / 192 * 64 : 4 * c.hidden_size;
}

// Micro-batches a rank and step.
inline int64_t gradient_accumulation_steps(const RunConfig& c, int world_size) {
  return c.global_batch_size / (c.micro_batch_size * world_size);
}

}  // namespace muster::worker
