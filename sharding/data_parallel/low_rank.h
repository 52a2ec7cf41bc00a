#pragma once
// The arithmetic of PowerSGD on thin matrices, which lie row by row: (rank, n). On the CPU the same bits whatever the number of
// threads, since every rank computes these for itself.

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace muster::sharding {

// Makes the rows of p (rank, n) orthonormal (Gram-Schmidt, each row twice). A row that the ones before it span becomes zero; a
// non-finite element makes non-finite what comes from it.
void orthogonalise(const at::Tensor& p);
// The same by operations of LibTorch, without a wait for the device: for all but the CPU.
void orthogonalise_anywhere(const at::Tensor& p);

// sum over k of p[k]^T q[k] into out (rows, cols), for p (rank, rows) and q (rank, cols).
void expand(const at::Tensor& p, const at::Tensor& q, const at::Tensor& out);

// Standard normal numbers that are a function of (seed, name, element) alone. float64 on the CPU.
at::Tensor normal_numbers(uint64_t seed, std::string_view name, int64_t rows, int64_t cols);

}  // namespace muster::sharding
