#pragma once
// The arithmetic of a reduction, vectorised by the compiler for the CPU it runs on.

#include "comm/collective/host/operation.h"

namespace muster::comm::host {

// out[i] = in[0][i] op in[1][i] op ... op in[inputs - 1][i], from left to right, for i in [0, count).
// bfloat16 and float16 are reduced in float32 and rounded once, to nearest even. A NaN in any input gives NaN.
// out may be the same memory as one of the inputs, not overlap it otherwise. Pointers may be unaligned. inputs >= 1.
void reduce(DType dtype, ReduceOp op, void* out, const void* const* in, int inputs, size_t count);

}  // namespace muster::comm::host
