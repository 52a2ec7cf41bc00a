#include "sharding/plan/memory_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

constexpr int64_t kInFlight = 3;  // buckets of gradients under way: Reducer::kInFlight and the one being filled
constexpr int64_t kGathered = 2;  // whole units of parameters at a time: the one in use and the next

// Of a block's matrices, in float64: it may be beyond any integer.
double matrix_elements(const ModelShape& s) {
  return static_cast<double>(s.hidden_size) * static_cast<double>(s.qkv_width() + s.hidden_size + s.up_width() + s.inner_width());
}

constexpr int64_t kLongest = int64_t{1} << 40;  // of any dimension: sums of some stay far from overflow

void check_dimensions(const MemoryInput& in) {
  const ModelShape& s = in.model;
  for (const int64_t n : {s.num_attention_heads, s.hidden_size, s.seq_length, s.vocab_size, in.micro_batch_size}) {
    if (n < 1 || n > kLongest) refuse("model: found a dimension of {}, wanted 1 to {}", n, kLongest);
  }
  if (s.num_layers < 1 || s.num_layers > 1 << 20) refuse("model: found {} layers, wanted 1 to {}", s.num_layers, 1 << 20);
  if (s.num_query_groups < 0 || s.num_query_groups > s.num_attention_heads || s.ffn_width < 0 || s.ffn_width > kLongest) {
    refuse("model: found {} query groups and an MLP {} wide; wanted at most {} and {}", s.num_query_groups, s.ffn_width, s.num_attention_heads, kLongest);
  }
  if (in.shards < 1 || in.replicas < 1 || int64_t{in.shards} * in.replicas > 1 << 20) {
    refuse("ranks: found {} x {}, wanted 1 to {} in all", in.shards, in.replicas, 1 << 20);
  }
}

// Beyond this no sum of parts fits 63 bits.
void check_size(const ModelShape& s, int64_t micro_batch) {
  const double layers = static_cast<double>(s.num_layers);
  const double elements = matrix_elements(s) * layers + static_cast<double>(s.hidden_size) * static_cast<double>(s.vocab_size + s.seq_length);
  const double heads = static_cast<double>(s.num_attention_heads) * static_cast<double>(s.seq_length);
  const double rows = static_cast<double>(micro_batch) * static_cast<double>(s.seq_length);
  const double activations = rows * ((20.0 * static_cast<double>(s.hidden_size + s.up_width()) + heads) * layers + static_cast<double>(s.vocab_size));
  if (std::max(elements, activations) * 32 > std::ldexp(1.0, 62)) refuse("model: {:.3g} parameters and {:.3g} activations do not fit any machine", elements, activations);
}

Partition partition_of(const MemoryInput& in) {
  PartitionOptions options = in.buckets;
  options.element_bytes = in.grad_bytes;
  options.shards = in.shards;
  options.by_unit = in.zero_stage > 2;
  const auto specs = model_parameters(in.model);
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

double matrix_share(const ModelShape& s, const Partition& partition) {
  return matrix_elements(s) * static_cast<double>(s.num_layers) / static_cast<double>(partition.size());
}

// Elements of a row that one block keeps for its backward pass: two norm inputs, two norm outputs, attention's output, q k v, the
// MLP's first output; without recomputation the activation's output too.
int64_t kept_elements(const ModelShape& s, const std::string& recompute) {
  if (recompute == "full") return s.hidden_size;  // its input
  return 5 * s.hidden_size + s.qkv_width() + s.up_width() + (recompute == "none" ? s.inner_width() : 0);
}

// What int8 (one flat buffer) and PowerSGD (an error and two thin factors a matrix; low enough ones travel as they are) keep from
// step to step, in elements of the gradients' dtype.
int64_t feedback_elements(const MemoryInput& in, const Partition& partition) {
  if (in.zero_stage > 0 || in.replicas == 1 || in.compression == "none") return 0;
  if (in.compression == "int8") return partition.size();
  int64_t sum = 0;
  for (const ParameterSpec& p : model_parameters(in.model)) {
    if (p.shape.size() != 2) continue;
    const int64_t rows = p.shape[0], columns = p.shape[1], rank = in.compression_rank;
    if (rank * (rows + columns) < rows * columns) sum += rows * columns + 2 * rank * columns;
  }
  return sum;
}

// Elements of the copies in which gradients travel in another dtype. Sums over replicas keep theirs to the end of the step.
int64_t wire_elements(const MemoryInput& in, int64_t whole, int64_t largest) {
  if (in.wire_bytes == in.grad_bytes) return 0;
  const int64_t summed = in.replicas > 1 ? whole / in.shards : 0;
  if (in.zero_stage == 0) return summed;
  return summed + (in.zero_stage == 1 ? whole : kInFlight * largest);
}

// A node's segment for a communicator of the host backend, as comm/collective/host/shared_segment.cc sizes it, without its headers.
int64_t segment_bytes(int64_t ranks) {
  constexpr int64_t kSlots = 4;
  const int64_t slot = std::clamp<int64_t>((4 << 20) / ranks, 64 << 10, 512 << 10) / 4096 * 4096;
  const int64_t mail = std::clamp<int64_t>((16 << 20) / (ranks * ranks * kSlots), 4096, 128 << 10) / 64 * 64;
  return ranks * kSlots * slot + ranks * ranks * kSlots * mail;
}

// The sizes of the communicators that a rank is in (sharding/mesh/groups.cc).
std::vector<int64_t> communicators(const MemoryInput& in) {
  const int64_t world = static_cast<int64_t>(in.shards) * in.replicas;
  std::vector<int64_t> sizes;
  if (world > 1) sizes.push_back(world);
  for (const int64_t group : {static_cast<int64_t>(in.shards), static_cast<int64_t>(in.replicas)}) {
    if (group > 1 && group < world) sizes.push_back(group);
  }
  if (in.zero_stage > 2 && in.shards > 1) sizes.push_back(in.shards);  // gathers have their own
  return sizes;
}

class Planner {
 public:
  explicit Planner(const MemoryInput& input)
      : in_(input), partition_(partition_of(input)), whole_(partition_.size()), shard_(whole_ / in_.shards), largest_(partition_.largest_bucket()),
        rows_(in_.micro_batch_size * in_.model.seq_length) {
    add_state();
    add_exchange();
    add_pass();
    add_communicators();
  }
  MemoryPlan take() { return std::move(plan_); }

 private:
  void add(std::string name, double bytes, std::string formula) {
    if ((sum_ += bytes) > std::ldexp(1.0, 62)) refuse("model: {:.3g} bytes do not fit any machine", sum_);
    if (bytes > 0) plan_.parts.push_back({std::move(name), static_cast<int64_t>(bytes), std::move(formula)});
  }
  void add(std::string name, int64_t bytes, std::string formula) { add(std::move(name), static_cast<double>(bytes), std::move(formula)); }
  int64_t of_stage(int stage) const { return in_.zero_stage >= stage ? shard_ : whole_; }
  std::string elements(int stage) const {
    return in_.zero_stage >= stage && in_.shards > 1 ? fmt::format("{} / {}", whole_, in_.shards) : fmt::format("{}", whole_);
  }

  void add_state() {
    add("parameters", of_stage(3) * in_.param_bytes, fmt::format("{} x {} B", elements(3), in_.param_bytes));
    add("gradients", of_stage(2) * in_.grad_bytes, fmt::format("{} x {} B", elements(2), in_.grad_bytes));
    const double state = moment_bytes(in_, matrix_share(in_.model, partition_)) + static_cast<double>(in_.master_bytes);
    if (!in_.offload_optimizer) {
      add("optimizer", static_cast<double>(of_stage(1)) * state,
          fmt::format("{} x {:.4g} B ({}{})", elements(1), state, in_.optimizer, in_.master_bytes ? ", master copy" : ""));
    } else {
      const double bucket = static_cast<double>(in_.zero_stage >= 1 ? largest_ / in_.shards : largest_);
      add("optimizer visit", bucket * state, fmt::format("{:.0f} x {:.4g} B: a bucket's state; the rest is in host memory", bucket, state));
    }
  }

  void add_exchange() {
    const int64_t feedback = feedback_elements(in_, partition_), travelling = wire_elements(in_, whole_, largest_);
    add("error feedback", feedback * in_.grad_bytes, fmt::format("{} x {} B ({})", feedback, in_.grad_bytes, in_.compression));
    add("wire copies", travelling * in_.wire_bytes, fmt::format("{} x {} B: gradients in the dtype in which they travel", travelling, in_.wire_bytes));
    const int64_t buffers = in_.zero_stage >= 2 ? kInFlight + in_.model.tied : 0;  // a tied embedding's gradient begins first and ends last
    add("gradient buckets", buffers * largest_ * in_.grad_bytes, fmt::format("{} x {} x {} B", buffers, largest_, in_.grad_bytes));
    const int64_t incoming = incoming_elements();
    add("incoming shards", incoming * in_.wire_bytes, fmt::format("{} x {} B", incoming, in_.wire_bytes));
    const int64_t gathered = in_.zero_stage >= 3 ? kGathered * largest_ : 0;
    add("gathered units", gathered * in_.param_bytes, fmt::format("{} x {} x {} B", kGathered, largest_, in_.param_bytes));
  }

  // Stage 1 without replicas lets all shards land at the end of the step (Reducer::scatter).
  int64_t incoming_elements() const {
    const bool other_dtype = in_.wire_bytes != in_.grad_bytes, adds = in_.zero_stage >= 2 && in_.accumulation > 1;
    if (in_.zero_stage == 0 || !(other_dtype || adds)) return 0;
    return in_.zero_stage == 1 && in_.replicas == 1 ? shard_ : kInFlight * (largest_ / in_.shards);
  }

  void add_pass() {
    const ModelShape& s = in_.model;
    const int64_t once = (in_.recompute == "full" ? kept_elements(s, "none") : 0) + 2 * s.hidden_size;  // 2: the final norm
    const int64_t kept = kept_elements(s, in_.recompute) * s.num_layers + once;
    add("activations", rows_ * kept * in_.param_bytes, fmt::format("{} rows x {} x {} B (recompute {})", rows_, kept, in_.param_bytes, in_.recompute));
    add_attention();
    const int64_t under_way = s.hidden_size + s.up_width() + s.inner_width();
    add("backward", rows_ * under_way * in_.param_bytes, fmt::format("{} rows x {} x {} B: gradients of one block under way", rows_, under_way, in_.param_bytes));
    const int64_t logit_bytes = std::max<int64_t>(in_.param_bytes, 2);
    add("logits", rows_ * s.vocab_size * logit_bytes, fmt::format("{} rows x {} x {} B", rows_, s.vocab_size, logit_bytes));
  }

  void add_attention() {
    const ModelShape& s = in_.model;
    const int64_t layers = in_.recompute == "none" ? s.num_layers : 1, numbers = in_.keeps_probabilities ? s.seq_length : 1;
    const int64_t bytes = in_.keeps_probabilities ? in_.param_bytes : std::max<int64_t>(in_.param_bytes, 4);
    add("attention", rows_ * s.num_attention_heads * numbers * layers * bytes,
        fmt::format("{} rows x {} heads x {} x {} layers x {} B: {}", rows_, s.num_attention_heads, numbers, layers, bytes,
                    in_.keeps_probabilities ? "probabilities" : "log-sum-exp"));
  }

  void add_communicators() {
    if (!in_.shared_memory) return;
    int64_t bytes = 0;
    std::vector<std::string> terms;
    for (const int64_t ranks : communicators(in_)) {
      bytes += segment_bytes(ranks) / ranks;
      terms.push_back(fmt::format("{} / {}", segment_bytes(ranks), ranks));
    }
    add("communicators", bytes, fmt::format("{} B: a rank's part of the node's shared memory", fmt::join(terms, " + ")));
  }

  const MemoryInput& in_;
  const Partition partition_;
  const int64_t whole_, shard_, largest_;  // elements: of all, of what a rank owns, of the largest_ bucket
  const int64_t rows_;
  MemoryPlan plan_;
  double sum_ = 0;
};

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
  check_dimensions(in);
  check_size(in.model, in.micro_batch_size);
  return Planner(in).take();
}

}  // namespace muster::sharding
