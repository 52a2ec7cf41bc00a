#pragma once
// What a collective accepts: checked before anything is sent, the same on the host and the loopback backend.

#include "comm/collective/host/operation.h"

namespace muster::comm::host {

// CheckError for a tensor on another device.
void require_cpu(const at::Tensor& tensor);

// Each throws CheckError for a tensor that is not contiguous, of a dtype the operation cannot take or of the
// wrong size, and for a rank outside [0, size). The operation holds raw pointers: the caller keeps the tensors alive.
Operation all_reduce_operation(const at::Tensor& inout, ReduceOp op);
Operation reduce_scatter_operation(const at::Tensor& out, const at::Tensor& in, ReduceOp op, int size);
Operation all_gather_operation(const at::Tensor& out, const at::Tensor& in, int size);
Operation broadcast_operation(const at::Tensor& inout, int root, int size);
// A rank cannot send to itself.
Operation send_operation(const at::Tensor& tensor, int to, int rank, int size);
Operation recv_operation(const at::Tensor& tensor, int from, int rank, int size);

// Adds one call. Payload is the largest tensor of the call: the input of a reduce_scatter, the output of an all_gather.
void count_call(Counters& counters, const Operation& operation, int size);

}  // namespace muster::comm::host
