#pragma once

#include <vector>

#include "sharding/plan/partition.h"

namespace muster::sharding {

struct GptShape {
  int64_t num_layers = 0, num_attention_heads = 0, hidden_size = 0, seq_length = 0, vocab_size = 0;
  bool bias = false, tied = true;
};

// The parameters of worker/models/gpt.cc in registration order (a test compares the two).
std::vector<ParameterSpec> gpt_parameters(const GptShape& shape);

}  // namespace muster::sharding
