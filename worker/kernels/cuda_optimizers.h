#pragma once
// The CUDA half of optimizers.h; cuda_register.cc puts it into the table.

#include "worker/kernels/optimizers.h"

namespace muster::worker::kernels {

void sgd_momentum_cuda(at::Tensor master, at::Tensor grad, at::Tensor momentum, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                       const SgdStep& step);
void lion_cuda(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
               const LionStep& step);
void adamw_8bit_cuda(at::Tensor master, at::Tensor grad, const EightBitMoment& m, const EightBitMoment& v, at::Tensor model, int64_t decay_elements,
                     const at::Tensor& grad_scale, const AdamWStep& step);
void encode_8bit_cuda(const at::Tensor& values, const EightBitMoment& to, bool is_signed);
at::Tensor decode_8bit_cuda(const EightBitMoment& from, bool is_signed);

}  // namespace muster::worker::kernels
