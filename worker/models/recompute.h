#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::worker::ops {

// Tensors may be undefined.
using TensorList = std::vector<at::Tensor>;
using Piece = std::function<TensorList(const TensorList&)>;

// piece(inputs), keeping only the inputs: the backward pass runs the piece again and then its backward pass (Chen et al., 2016).
// The piece must give the same values both times (our dropout masks are functions of their key; the generator that fused GPU
// attention draws from is put back for the second run). Without gradients it is just piece(inputs).
TensorList recompute(const Piece& piece, const TensorList& inputs);

}  // namespace muster::worker::ops
