#pragma once
// What decoder-only models share: parameters by unit, the block, dropout keys, recomputation, the way from tokens to the loss.

#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "worker/kernels/kernels.h"
#include "worker/models/model.h"
#include "worker/models/recompute.h"

namespace muster::worker {

// Pre-norm blocks: x += out(attention(place(qkv(norm1(x))))), x += mlp(norm2(x)). Initial values as GPT-2's: standard deviation
// 0.02, projections into the residual stream divided by sqrt(2 layers). A model is a constructor that registers its parameters,
// and the four operations that differ.
class Transformer : public Model {
 public:
  std::vector<sharding::Parameter*> parameters() override;
  sharding::UnitSchedule units() const override;
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) override;
  at::Tensor next_token_logits(const at::Tensor& tokens) override;

 protected:
  enum class Recompute { kNone, kSelective, kFull };
  struct Linear {
    sharding::Parameter *weight = nullptr, *bias = nullptr;
  };
  struct Block {
    std::string name;
    Linear norm1, qkv, out, norm2, up, down;
  };

  explicit Transformer(const RunConfig& config);

  // Registration, in this order: embeddings, blocks, end.
  sharding::Parameter* add_embedding(const std::string& name, int64_t rows);
  // up: name of the MLP's first matrix, up_rows its outputs.
  void add_blocks(const std::string& up, int64_t up_rows);
  // The final norm, and a head over `tokens` rows unless `token_table` is that too.
  void add_end(sharding::Parameter* token_table);

  virtual at::Tensor embed(const at::Tensor& tokens) = 0;  // (B T, C)
  // Norm of residual + branch: {sum, normed}; branch may be undefined.
  virtual std::tuple<at::Tensor, at::Tensor> norm(const at::Tensor& residual, const at::Tensor& branch,
                                                  const Linear& n) const = 0;
  virtual at::Tensor place(const at::Tensor& qkv, int64_t length) const { return qkv; }  // positions of queries and keys
  virtual at::Tensor mlp(const at::Tensor& up, const Linear& down) const = 0;  // activation and projection

  bool keeps_activations() const { return recompute_ == Recompute::kNone; }
  const RunConfig config_;

 private:
  sharding::Parameter* add(std::string name, std::vector<int64_t> shape, sharding::Init init, bool decay);
  Linear add_linear(const std::string& name, int64_t out, int64_t in, double std);
  Linear add_norm(const std::string& name);
  Block add_block(int64_t index, const std::string& up, int64_t up_rows);

  at::Tensor attend(const Block& b, const at::Tensor& qkv, int64_t batch, const PassContext& pass) const;
  ops::TensorList run(const Block& b, const ops::TensorList& in, int64_t batch, const PassContext& pass) const;
  at::Tensor body(const at::Tensor& tokens, const PassContext& pass);
  at::Tensor drop(const at::Tensor& x, int64_t batch, const std::string& module, const PassContext& pass) const;
  kernels::DropoutKey dropout_key(const std::string& module, double p, const PassContext& pass) const;

  const Recompute recompute_;
  std::deque<sharding::Parameter> storage_;  // stable addresses
  int unit_ = 0;                             // of the parameters being added: 0 embeddings, 1 + i block i, the last the end
  std::vector<Block> blocks_;
  Linear final_norm_;
  sharding::Parameter* head_ = nullptr;      // may be the token table
};

std::unique_ptr<Model> make_gpt(const RunConfig& config, int64_t vocab_size);
std::unique_ptr<Model> make_llama(const RunConfig& config, int64_t vocab_size);

}  // namespace muster::worker
