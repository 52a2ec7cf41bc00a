#include "worker/train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "worker/kernels/philox.h"

namespace muster::worker {
namespace {

constexpr double kTemperature = 0.8;
constexpr size_t kTopK = 200;

int64_t draw(const double* logits, int64_t vocab, double u) {
  std::vector<int64_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  const size_t k = std::min(kTopK, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(k), order.end(),
                    [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<double> cumulative(k);
  double total = 0;
  for (size_t i = 0; i < k; ++i) cumulative[i] = total += std::exp((logits[order[i]] - logits[order[0]]) / kTemperature);
  const auto at = std::lower_bound(cumulative.begin(), cumulative.end(), u * total) - cumulative.begin();
  return order[std::min(static_cast<size_t>(at), k - 1)];
}

at::Tensor window(const std::vector<int64_t>& tokens, int64_t seq_length, at::Device device) {
  const int64_t length = std::min(seq_length, static_cast<int64_t>(tokens.size()));
  at::Tensor rows = at::empty({1, length}, at::TensorOptions().dtype(at::kLong));
  std::copy(tokens.end() - length, tokens.end(), rows.mutable_data_ptr<int64_t>());
  return rows.to(device);
}

}  // namespace

std::vector<int64_t> generate(const std::function<at::Tensor(const at::Tensor&)>& next_logits, std::vector<int64_t> prompt, int64_t count, int64_t seq_length,
                              at::Device device, uint64_t seed) {
  const c10::AutoGradMode no_graph(false);
  const uint64_t key = philox_key(seed, "generate");
  const size_t given = prompt.size();
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor logits = next_logits(window(prompt, seq_length, device)).to(at::kDouble).to(at::kCPU).contiguous();
    prompt.push_back(draw(logits.const_data_ptr<double>(), logits.numel(), uniform01(philox(key, static_cast<uint64_t>(i), 0).v[0])));
  }
  return {prompt.begin() + static_cast<int64_t>(given), prompt.end()};
}

}  // namespace muster::worker
