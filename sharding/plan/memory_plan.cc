#include "sharding/plan/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

constexpr int64_t kInFlight = 3;  // buckets of gradients under way: Reducer::kInFlight and the one being filled
constexpr int64_t kGathered = 2;  // whole units of parameters at a time: the one in use and the next

// Beyond this no sum of parts fits 63 bits.
void check_size(const GptShape& s, int64_t micro_batch) {
  const double elements = static_cast<double>(s.hidden_size) * (12.0 * static_cast<double>(s.hidden_size) * static_cast<double>(s.num_layers) +
                                                                static_cast<double>(s.vocab_size + s.seq_length));
  const double rows = static_cast<double>(micro_batch) * static_cast<double>(s.seq_length);
  const double activations = rows * (20.0 * static_cast<double>(s.hidden_size) * static_cast<double>(s.num_layers) + static_cast<double>(s.vocab_size));
  if (std::max(elements, activations) * 32 > std::ldexp(1.0, 62)) refuse("model: {:.3g} parameters and {:.3g} activations do not fit any machine", elements, activations);
}

Partition partition_of(const MemoryInput& in) {
  PartitionOptions options = in.buckets;
  options.element_bytes = in.grad_bytes;
  options.shards = in.shards;
  options.by_unit = in.zero_stage > 2;
  const auto specs = gpt_parameters(in.model);
  return Partition(specs, reverse_registration_order(static_cast<int>(specs.size())), options);
}

// Bytes of an owned element's moments; fractions are block scales.
double moment_bytes(const MemoryInput& in, double matrix_share) {
  const double wide = static_cast<double>(in.master_bytes > 0 ? in.master_bytes : in.param_bytes);
  if (in.optimizer == "adamw_8bit") return 2 * (1 + 4.0 / 256);
  if (in.optimizer == "sgd" || in.optimizer == "lion") return wide;
  if (in.optimizer == "muon") return wide * (2 - matrix_share);
  return 2 * wide;
}

double matrix_share(const GptShape& s, const Partition& partition) {
  const double matrices = 12.0 * static_cast<double>(s.hidden_size * s.hidden_size * s.num_layers);
  return matrices / static_cast<double>(partition.size());
}

// Rows x elements that one block keeps for its backward pass, in widths of the residual stream.
int64_t kept_widths(const std::string& recompute) {
  if (recompute == "full") return 1;        // its input
  if (recompute == "selective") return 12;  // two norm inputs, two norm outputs, q k v, attention's output, 4 of the MLP
  return 16;                                // and GELU's output
}

}  // namespace

int64_t MemoryPlan::bytes(const std::string& name) const {
  for (const MemoryPart& part : parts) {
    if (part.name == name) return part.bytes;
  }
  return 0;
}

int64_t MemoryPlan::total() const {
  int64_t sum = 0;
  for (const MemoryPart& part : parts) sum += part.bytes;
  return sum;
}

int64_t MemoryPlan::persistent() const { return bytes("parameters") + bytes("gradients") + bytes("optimizer"); }

MemoryPlan plan_memory(const MemoryInput& in) {
  check_size(in.model, in.micro_batch_size);
  const Partition partition = partition_of(in);
  const int64_t whole = partition.size(), shard = whole / in.shards, largest = partition.largest_bucket();
  const int64_t rows = in.micro_batch_size * in.model.seq_length, width = in.model.hidden_size;
  MemoryPlan plan;
  const auto add = [&](std::string name, double bytes, std::string formula) {
    if (bytes > 0) plan.parts.push_back({std::move(name), static_cast<int64_t>(bytes), std::move(formula)});
  };
  const auto of_stage = [&](int stage) { return in.zero_stage >= stage ? shard : whole; };
  const auto elements = [&](int stage) { return in.zero_stage >= stage && in.shards > 1 ? fmt::format("{} / {}", whole, in.shards) : fmt::format("{}", whole); };

  add("parameters", static_cast<double>(of_stage(3) * in.param_bytes), fmt::format("{} x {} B", elements(3), in.param_bytes));
  add("gradients", static_cast<double>(of_stage(2) * in.grad_bytes), fmt::format("{} x {} B", elements(2), in.grad_bytes));
  const double state = moment_bytes(in, matrix_share(in.model, partition)) + static_cast<double>(in.master_bytes);
  if (!in.offload_optimizer) {
    add("optimizer", static_cast<double>(of_stage(1)) * state, fmt::format("{} x {:.4g} B ({}{})", elements(1), state, in.optimizer, in.master_bytes ? ", master copy" : ""));
  } else {
    const double bucket = static_cast<double>(in.zero_stage >= 1 ? largest / in.shards : largest);
    add("optimizer visit", bucket * state, fmt::format("{:.0f} x {:.4g} B: a bucket's state; the rest is in host memory", bucket, state));
  }
  if (in.zero_stage >= 2) {
    const int64_t buffers = kInFlight + in.model.tied;  // a tied embedding's gradient begins first and ends last
    add("gradient buckets", static_cast<double>(buffers * largest * in.grad_bytes), fmt::format("{} x {} x {} B", buffers, largest, in.grad_bytes));
    if (in.accumulation > 1 || in.wire_bytes != in.grad_bytes) {
      add("incoming shards", static_cast<double>(kInFlight * (largest / in.shards) * in.wire_bytes),
          fmt::format("{} x {} / {} x {} B", kInFlight, largest, in.shards, in.wire_bytes));
    }
  }
  if (in.zero_stage >= 3) add("gathered units", static_cast<double>(kGathered * largest * in.param_bytes), fmt::format("{} x {} x {} B", kGathered, largest, in.param_bytes));

  const int64_t kept = kept_widths(in.recompute) * in.model.num_layers + (in.recompute == "full" ? 16 : 0) + 2;  // 2: the final norm
  add("activations", static_cast<double>(rows * width * kept * in.param_bytes),
      fmt::format("{} rows x {} x {} x {} B (recompute {})", rows, width, kept, in.param_bytes, in.recompute));
  add("backward", static_cast<double>(rows * width * 9 * in.param_bytes), fmt::format("{} rows x {} x 9 x {} B: gradients of one block under way", rows, width, in.param_bytes));
  const int64_t logit_bytes = std::max<int64_t>(in.param_bytes, 2);
  add("logits", static_cast<double>(rows * in.model.vocab_size * logit_bytes), fmt::format("{} rows x {} x {} B", rows, in.model.vocab_size, logit_bytes));
  return plan;
}

}  // namespace muster::sharding
