#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::worker {

// Continues `prompt` by `count` tokens, drawn at temperature 0.8 from the 200 likeliest (nanoGPT's sample.py). The draw is a
// function of `seed` alone. next_logits: tokens (1, T) to logits (1, V). Blocks on the device once a token.
std::vector<int64_t> generate(const std::function<at::Tensor(const at::Tensor&)>& next_logits, std::vector<int64_t> prompt, int64_t count, int64_t seq_length, at::Device device, uint64_t seed);

}  // namespace muster::worker
