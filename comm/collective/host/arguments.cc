#include "comm/collective/host/arguments.h"

namespace muster::comm::host {
namespace {

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return DType::kFloat64;
    case at::kFloat: return DType::kFloat32;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    case at::kLong: return DType::kInt64;
    case at::kByte: return DType::kUInt8;
    default: throw CheckError(fmt::format("dtype {} in a collective; wanted float64, float32, bfloat16, float16, int64 or uint8",
                                          c10::toString(tensor.scalar_type())));
  }
}

DType checked(OpKind kind, const at::Tensor& tensor) {
  MUSTER_CHECK(tensor.defined());
  if (!tensor.is_contiguous()) throw CheckError(fmt::format("{} of a tensor that is not contiguous", comm::to_string(kind)));
  return dtype_of(tensor);
}

DType checked_to_reduce(OpKind kind, const at::Tensor& tensor) {
  const DType dtype = checked(kind, tensor);
  if (dtype == DType::kUInt8) throw CheckError(fmt::format("{} of uint8; only data movement takes uint8", comm::to_string(kind)));
  return dtype;
}

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

Operation operation(OpKind kind, DType dtype, const at::Tensor& out, const at::Tensor& in, int64_t count) {
  Operation result;
  result.kind = kind;
  result.dtype = dtype;
  result.out = bytes_of(out);
  result.in = bytes_of(in);
  result.count = static_cast<size_t>(count);
  return result;
}

void check_rank(int rank, int size) {
  MUSTER_CHECK_LE(0, rank);
  MUSTER_CHECK_LT(rank, size);
}

Operation point_to_point(OpKind kind, const at::Tensor& tensor, int peer, int rank, int size) {
  Operation result = operation(kind, checked(kind, tensor), tensor, tensor, tensor.numel());
  check_rank(peer, size);
  if (peer == rank) throw CheckError(fmt::format("{} between rank {} and itself", comm::to_string(kind), rank));
  result.peer = peer;
  return result;
}

}  // namespace

void require_cpu(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) throw CheckError(fmt::format("collective of a tensor on {}; the host backend wants cpu", tensor.device().str()));
}

Operation all_reduce_operation(const at::Tensor& inout, ReduceOp op) {
  const DType dtype = checked_to_reduce(OpKind::kAllReduce, inout);
  Operation result = operation(OpKind::kAllReduce, dtype, inout, inout, inout.numel());
  result.reduce = op;
  return result;
}

Operation reduce_scatter_operation(const at::Tensor& out, const at::Tensor& in, ReduceOp op, int size) {
  const DType dtype = checked_to_reduce(OpKind::kReduceScatter, in);
  MUSTER_CHECK(checked(OpKind::kReduceScatter, out) == dtype);
  MUSTER_CHECK_EQ(out.numel() * size, in.numel());
  Operation result = operation(OpKind::kReduceScatter, dtype, out, in, out.numel());
  result.reduce = op;
  return result;
}

Operation all_gather_operation(const at::Tensor& out, const at::Tensor& in, int size) {
  const DType dtype = checked(OpKind::kAllGather, in);
  MUSTER_CHECK(checked(OpKind::kAllGather, out) == dtype);
  MUSTER_CHECK_EQ(in.numel() * size, out.numel());
  return operation(OpKind::kAllGather, dtype, out, in, in.numel());
}

Operation broadcast_operation(const at::Tensor& inout, int root, int size) {
  check_rank(root, size);
  Operation result = operation(OpKind::kBroadcast, checked(OpKind::kBroadcast, inout), inout, inout, inout.numel());
  result.peer = root;
  return result;
}

Operation send_operation(const at::Tensor& tensor, int to, int rank, int size) {
  return point_to_point(OpKind::kSend, tensor, to, rank, size);
}

Operation recv_operation(const at::Tensor& tensor, int from, int rank, int size) {
  return point_to_point(OpKind::kRecv, tensor, from, rank, size);
}

void count_call(Counters& counters, const Operation& operation, int size) {
  const bool whole = operation.kind == OpKind::kReduceScatter || operation.kind == OpKind::kAllGather;
  const auto index = static_cast<size_t>(operation.kind);
  counters.calls[index] += 1;
  counters.bytes[index] += static_cast<int64_t>(operation.bytes()) * (whole ? size : 1);
}

}  // namespace muster::comm::host
