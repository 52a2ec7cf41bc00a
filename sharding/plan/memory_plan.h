#pragma once
// What a rank needs of its device's memory, part by part: one formula for `muster memory`, the log of a run, and docs/memory.md.

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/plan/model_shapes.h"

namespace muster::sharding {

struct MemoryInput {
  ModelShape model;
  PartitionOptions buckets;
  int zero_stage = 0;
  int shards = 1;    // ranks that shard together; 1 with stage 0
  int replicas = 1;  // ranks that hold the same shard
  int64_t param_bytes = 4, grad_bytes = 4, wire_bytes = 4;  // of an element
  int64_t master_bytes = 0;                                 // of an element's master copy; 0: parameters are their own
  std::string optimizer = "adamw";
  bool offload_optimizer = false;
  int64_t micro_batch_size = 1, accumulation = 1;
  std::string recompute = "none";
  bool keeps_probabilities = false;  // attention keeps (heads, seq_length) a row for its backward pass, else one number a head
  std::string compression = "none";  // of the gradient exchange, stage 0: none, int8, powersgd
  int64_t compression_rank = 4;
  bool shared_memory = false;        // communicators of the host backend, all ranks on one node
};

struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
  std::string formula;
};

struct MemoryPlan {
  std::vector<MemoryPart> parts;
  int64_t bytes(const std::string& name) const;  // 0 where there is none
  int64_t total() const;
  // What stays from step to step: parameters, gradients, optimizer.
  int64_t persistent() const;
};

// Of one rank. InputError where a size is beyond 2^62 bytes.
MemoryPlan plan_memory(const MemoryInput& input);

}  // namespace muster::sharding
