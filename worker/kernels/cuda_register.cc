#include "worker/kernels/cuda_register.h"

#include "worker/kernels/cuda_kernels.h"
#include "worker/kernels/dispatch.h"

namespace muster::worker::kernels {

void register_cuda_kernels() {
  cuda_table() = {dropout_cuda, adamw_cuda,         sum_of_squares_cuda,      cross_entropy_cuda,
                  gelu_cuda,    gelu_backward_cuda, residual_layer_norm_cuda, residual_layer_norm_backward_cuda};
}

}  // namespace muster::worker::kernels
