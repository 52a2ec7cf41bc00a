#pragma once
// As dispatch.h, for optimizers.h.

#include "worker/kernels/optimizers.h"

namespace muster::worker::kernels {

// Arguments are checked and contiguous when these are called.
struct OptimizerTable {
  void (*sgd_momentum)(at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, const at::Tensor&, const SgdStep&) = nullptr;
  void (*lion)(at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, const at::Tensor&, const LionStep&) = nullptr;
  void (*adamw_8bit)(at::Tensor, at::Tensor, const EightBitMoment&, const EightBitMoment&, at::Tensor, int64_t, const at::Tensor&,
                     const AdamWStep&) = nullptr;
  void (*encode_8bit)(const at::Tensor&, const EightBitMoment&, bool is_signed) = nullptr;
  at::Tensor (*decode_8bit)(const EightBitMoment&, bool is_signed) = nullptr;
};

OptimizerTable& cuda_optimizer_table();  // empty until register_cuda_kernels()
const OptimizerTable& cpu_optimizer_table();

}  // namespace muster::worker::kernels
