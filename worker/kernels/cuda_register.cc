#include "worker/kernels/cuda_register.h"

#include "worker/kernels/cuda_kernels.h"
#include "worker/kernels/cuda_llama.h"
#include "worker/kernels/cuda_optimizers.h"
#include "worker/kernels/dispatch.h"
#include "worker/kernels/dispatch_llama.h"
#include "worker/kernels/dispatch_optimizers.h"

namespace muster::worker::kernels {

void register_cuda_kernels() {
  cuda_table() = {dropout_cuda, adamw_cuda,         sum_of_squares_cuda,      cross_entropy_cuda,
                  gelu_cuda,    gelu_backward_cuda, residual_layer_norm_cuda, residual_layer_norm_backward_cuda};
  cuda_llama_table() = {residual_rms_norm_cuda, residual_rms_norm_backward_cuda, swiglu_cuda, swiglu_backward_cuda, rotary_cuda};
  cuda_optimizer_table() = {sgd_momentum_cuda, lion_cuda, adamw_8bit_cuda, encode_8bit_cuda, decode_8bit_cuda};
}

}  // namespace muster::worker::kernels
