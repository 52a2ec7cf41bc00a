#pragma once
// Update rules on flat buffers beside AdamW (kernels.h), each for CPU and CUDA tensors; contract as kernels.h. What they share with
// adamw: master float32 or float64; grad any float dtype, multiplied by grad_scale (one element of master's dtype on its device);
// model, where defined, receives master rounded to its own dtype; elements [0, decay_elements) have weight decay. All tensors have
// the same number of elements, any number.
//
// grad_scale not finite: the call changes nothing at all, without a host synchronisation. Gradients are trusted to be finite where
// grad_scale is. CPU: at::parallel_for over parts of fixed size, the same bits for any number of threads. Failure: CheckError.

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/kernels/kernels.h"

namespace muster::worker::kernels {

// ---- SGD with momentum -----------------------------------------------------------------------------------------------
struct SgdStep {
  double lr, momentum, weight_decay;
  bool nesterov = false;
  bool decoupled = false;  // the decay shrinks the weights by 1 - lr * weight_decay and stays out of the momentum
};
// As torch.optim.SGD without dampening: d = grad + weight_decay * master; momentum = mu * momentum + d; master -= lr * momentum
// (nesterov: lr * (d + mu * momentum)). The momentum starts as zeros, so the first one is d.
void sgd_momentum(at::Tensor master, at::Tensor grad, at::Tensor momentum, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                  const SgdStep& step);

// ---- Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023) -----------------------------------------
struct LionStep {
  double lr, beta1, beta2, weight_decay;
};
// master = master * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * grad); m = beta2 * m + (1 - beta2) * grad.
// sign(0) is 0. m starts as zeros.
void lion(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale, const LionStep& step);

// ---- AdamW with 8-bit moments (Dettmers et al., "8-bit optimizers via block-wise quantization", 2022) ------------------
// A moment is cut into blocks of 256 elements from the start of the tensor, the last one shorter; each is divided by its largest
// magnitude and rounded to the nearest of 256 values, the dynamic map (eight_bit_map.h).
constexpr int64_t kEightBitBlock = 256;
struct EightBitMoment {
  at::Tensor codes;   // (n) uint8
  at::Tensor scales;  // (ceil(n / 256)) float32: the largest magnitudes; all zero is a moment of zeros, whatever the codes
};
// m is signed, v is not. The update is adamw's with the moments decoded; what is above 0 in v stays so when it is rounded, for a v of 0
// would make its element's step enormous.
void adamw_8bit(at::Tensor master, at::Tensor grad, const EightBitMoment& m, const EightBitMoment& v, at::Tensor model, int64_t decay_elements,
                const at::Tensor& grad_scale, const AdamWStep& step);

// values (n) float32 or float64, >= 0 where not is_signed. Encoding what was decoded gives the same codes and scales.
void encode_8bit(const at::Tensor& values, const EightBitMoment& to, bool is_signed);
// Returns (n) float32.
at::Tensor decode_8bit(const EightBitMoment& from, bool is_signed);

// ---- Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024) -----------------------------
// g (rows, cols) float32 or float64 -> a new matrix of that dtype with the same singular vectors and singular values near 1 (between about
// 0.7 and 1.2 after five steps, where they were not below a thousandth of the norm): the quintic Newton-Schulz iteration with coefficients
// 3.4445, -4.7750, 2.0315. No 16-bit math; on CUDA float32 products are at::mm's. A zero matrix stays zero, and g's size does not
// matter. Allocates a few matrices of g's size.
at::Tensor muon_orthogonalize(const at::Tensor& g, int steps = 5);

}  // namespace muster::worker::kernels
