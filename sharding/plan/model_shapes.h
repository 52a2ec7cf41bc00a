#pragma once

#include <vector>

#include "sharding/plan/partition.h"

namespace muster::sharding {

struct ModelShape {
  int64_t num_layers = 0, num_attention_heads = 0, hidden_size = 0, seq_length = 0, vocab_size = 0;
  bool bias = false, tied = true;
  bool llama = false;                          // else gpt
  int64_t num_query_groups = 0, ffn_width = 0;  // 0: num_attention_heads, 4 hidden_size

  // Queries, keys and values of a token.
  int64_t qkv_width() const {
    return hidden_size +
           2 * (num_query_groups > 0 ? num_query_groups : num_attention_heads) * (hidden_size / num_attention_heads);
  }
  int64_t inner_width() const { return ffn_width > 0 ? ffn_width : 4 * hidden_size; }
  int64_t up_width() const { return (llama ? 2 : 1) * inner_width(); }  // llama: gate and up
};

// The parameters of worker/models/ in registration order (a test compares the two).
std::vector<ParameterSpec> model_parameters(const ModelShape& shape);

}  // namespace muster::sharding
