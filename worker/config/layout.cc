#include "worker/config/layout.h"

namespace muster::worker {

sharding::MeshSizes mesh_sizes(const RunConfig& config, int world_size) {
  return sharding::cut_ranks(world_size, 1, 1, config.zero_stage == 0 ? 1 : static_cast<int>(config.zero_shard_size));
}

sharding::MemoryInput memory_input(const RunConfig& c, int world_size, int64_t vocab_size) {
  sharding::MemoryInput in;
  in.model = {c.num_layers, c.num_attention_heads, c.hidden_size, c.seq_length, vocab_size, c.add_bias_linear, !c.untie_embeddings_and_output_weights,
              c.model == "llama", query_groups(c), ffn_width(c)};
  in.buckets.bucket_bytes = static_cast<int64_t>(c.reduce_bucket_size_mb * (1 << 20));
  in.buckets.first_bucket_bytes = static_cast<int64_t>(c.first_bucket_size_mb * (1 << 20));
  in.zero_stage = static_cast<int>(c.zero_stage);
  in.shards = mesh_sizes(c, world_size).shard;
  const bool half = c.precision == "bf16" || c.precision == "fp16", wide = c.precision == "fp64";
  in.param_bytes = half ? 2 : wide ? 8 : 4;
  in.grad_bytes = wide ? 8 : c.grad_accum_dtype == "bf16" ? 2 : 4;
  in.wire_bytes = c.communication_data_type == "auto" ? in.grad_bytes : c.communication_data_type == "fp32" ? 4 : 2;
  in.master_bytes = half ? 4 : 0;
  in.optimizer = c.optimizer;
  in.offload_optimizer = c.offload_optimizer && c.device != "cpu";
  in.micro_batch_size = c.micro_batch_size;
  in.accumulation = gradient_accumulation_steps(c, world_size);
  in.recompute = c.recompute_granularity;
  return in;
}

}  // namespace muster::worker
