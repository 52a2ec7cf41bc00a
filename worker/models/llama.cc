#include "comm/base/error.h"
#include "worker/models/ops.h"
#include "worker/models/transformer.h"

namespace muster::worker {
namespace {

using sharding::Parameter;

// Llama (Touvron et al., 2023): RMS norm, rotary embedding, SwiGLU, grouped-query attention, no biases. Rows of attention.qkv are
// [queries | keys | values], rows of mlp.gate_up are [gate | up].
class Llama : public Transformer {
 public:
  Llama(const RunConfig& config, int64_t vocab_size)
      : Transformer(config), token_table_(add_embedding("token_embedding", vocab_size)) {
    MUSTER_CHECK(!config.add_bias_linear);
    add_blocks("mlp.gate_up", 2 * ffn_width(config));
    add_end(token_table_);
  }

 private:
  at::Tensor embed(const at::Tensor& tokens) override { return ops::embedding(tokens, *token_table_, nullptr); }
  std::tuple<at::Tensor, at::Tensor> norm(const at::Tensor& residual, const at::Tensor& branch, const Linear& n) const override {
    return ops::residual_rms_norm(residual, branch, *n.weight, config_.norm_epsilon);
  }
  at::Tensor place(const at::Tensor& qkv, int64_t length) const override {
    MUSTER_CHECK_LE(length, config_.seq_length);
    const kernels::Rotary how{config_.num_attention_heads + query_groups(config_), config_.rotary_interleaved, false};
    return ops::rotary(qkv, angles(qkv).narrow(0, 0, length), how);
  }
  at::Tensor mlp(const at::Tensor& gate_up, const Linear& down) const override {
    return ops::swiglu_linear(gate_up, *down.weight, keeps_activations());
  }

  // Made where the first activations are; stays.
  const at::Tensor& angles(const at::Tensor& like) const {
    if (!angles_.defined()) {
      const auto options =
          like.options().dtype(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).requires_grad(false);
      angles_ = kernels::rotary_table(config_.seq_length, config_.hidden_size / config_.num_attention_heads, config_.rotary_base,
                                      options);
    }
    return angles_;
  }

  Parameter* const token_table_;
  mutable at::Tensor angles_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const RunConfig& config, int64_t vocab_size) {
  return std::make_unique<Llama>(config, vocab_size);
}

}  // namespace muster::worker
