#pragma once
// What the trainer asks of a model.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/data_parallel/gatherer.h"
#include "worker/config/run_config.h"

namespace muster::worker {

// Where a forward pass stands in the run: dropout masks are a function of this, not of rank or micro-batch.
struct PassContext {
  bool training = false;
  int64_t step = 0;
  int64_t first_sample = 0;  // global number of the batch's first sequence
  double gradient_scale = 1; // of all gradients of the pass
};

// Threads: the training thread. Ownership: holds the parameters; they get their storage from a FlatModel.
class Model {
 public:
  virtual ~Model() = default;
  // In registration order, the same on every rank.
  virtual std::vector<sharding::Parameter*> parameters() = 0;
  // The order in which loss() and its backward pass, and next_token_logits(), use the units of the parameters.
  virtual sharding::UnitSchedule units() const = 0;
  // Sum of the cross-entropy over counted tokens (targets >= 0), one element. tokens, targets (B, T) int64. The root of the
  // backward pass when gradients are enabled.
  virtual at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const PassContext& pass) = 0;
  // Logits of the last position, (B, V). tokens (B, T).
  virtual at::Tensor next_token_logits(const at::Tensor& tokens) = 0;
};

// config.model: "gpt" (GPT-2) or "llama". vocab_size: of the data.
std::unique_ptr<Model> make_model(const RunConfig& config, int64_t vocab_size);

}  // namespace muster::worker
