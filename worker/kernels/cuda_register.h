#pragma once

namespace muster::worker::kernels {

// Makes the functions of kernels.h take CUDA tensors. Call once, before the first of them.
void register_cuda_kernels();

}  // namespace muster::worker::kernels
