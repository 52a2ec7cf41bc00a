#include "worker/models/ops.h"
#include "worker/models/transformer.h"

namespace muster::worker {
namespace {

using sharding::Parameter;

// GPT-2 (Radford et al., 2019): layer norm, GELU, learned positions.
class Gpt : public Transformer {
 public:
  Gpt(const RunConfig& config, int64_t vocab_size)
      : Transformer(config),
        token_table_(add_embedding("token_embedding", vocab_size)),
        position_table_(add_embedding("position_embedding", config.seq_length)) {
    add_blocks("mlp.up", ffn_width(config));
    add_end(token_table_);
  }

 private:
  at::Tensor embed(const at::Tensor& tokens) override { return ops::embedding(tokens, *token_table_, position_table_); }
  std::tuple<at::Tensor, at::Tensor> norm(const at::Tensor& residual, const at::Tensor& branch, const Linear& n) const override {
    return ops::residual_norm(residual, branch, *n.weight, n.bias);
  }
  at::Tensor mlp(const at::Tensor& up, const Linear& down) const override {
    return ops::gelu_linear(up, *down.weight, down.bias, keeps_activations());
  }

  Parameter* const token_table_;
  Parameter* const position_table_;
};

}  // namespace

std::unique_ptr<Model> make_gpt(const RunConfig& config, int64_t vocab_size) { return std::make_unique<Gpt>(config, vocab_size); }

}  // namespace muster::worker
