// Times the CPU kernels of worker/kernels beside the ATen operations that do the same, on one thread, in turns.
//
//   kernels_bench [FILTER] [rounds]      only operations whose name contains FILTER; 31 rounds
//
// A figure is the median, over all rounds, of the time of one call. scripts/bench kernels runs it.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cxxopts.hpp>

#include "worker/kernels/attention.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/matmul.h"

namespace {

using namespace muster::worker;
using Clock = std::chrono::steady_clock;

std::string filter;
int rounds = 31;

double microseconds(const std::function<void()>& call, int calls) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
}

double median(std::vector<double>& times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void compare(const std::string& name, const std::function<void()>& ours, const std::function<void()>& aten) {
  if (name.find(filter) == std::string::npos) return;
  const int calls = std::clamp(static_cast<int>(1000 / std::max(1.0, microseconds(aten, 3))), 1, 100);
  microseconds(ours, 3);
  std::vector<double> a, b;
  for (int i = 0; i < rounds; ++i) {
    a.push_back(microseconds(ours, calls));
    b.push_back(microseconds(aten, calls));
  }
  const double mine = median(a), theirs = median(b);
  std::printf("%-44s %10.1f %10.1f %8.2f\n", name.c_str(), mine, theirs, theirs / mine);
}

std::string shape_of(const char* name, int64_t rows, int64_t width) {
  return std::string(name) + " " + std::to_string(rows) + " x " + std::to_string(width);
}

void rows_of(int64_t rows, int64_t width) {
  const at::Tensor x = at::randn({rows, width}), y = at::randn({rows, width}), g = at::randn({rows, width}), w = at::randn({width}), b = at::randn({width});
  compare(shape_of("gelu", rows, width), [&] { kernels::gelu(x); }, [&] { at::gelu(x); });
  compare(shape_of("gelu_backward", rows, width), [&] { kernels::gelu_backward(g, x); }, [&] { at::gelu_backward(g, x); });
  compare(shape_of("layer_norm", rows, width), [&] { kernels::residual_layer_norm(x, {}, w, b); }, [&] { at::native_layer_norm(x, {width}, w, b, 1e-5); });
  compare(shape_of("residual_layer_norm", rows, width), [&] { kernels::residual_layer_norm(x, y, w, b); },
          [&] { at::native_layer_norm(x.add(y), {width}, w, b, 1e-5); });
  const auto out = kernels::residual_layer_norm(x, y, w, b);
  const at::Tensor gw = at::zeros({width}), gb = at::zeros({width});
  compare(shape_of("residual_layer_norm_backward", rows, width),
          [&] { kernels::residual_layer_norm_backward(g, y, out.sum, out.mean, out.rstd, w, gw, gb); },
          [&] {
            const auto [dx, dw, db] = at::native_layer_norm_backward(g, out.sum, {width}, out.mean.view({rows, 1}), out.rstd.view({rows, 1}), w, b, {true, true, true});
            dx.add_(y), gw.add_(dw), gb.add_(db);
          });
  compare(shape_of("dropout", rows, width), [&] { kernels::dropout(x, {1, 0, 0.1}); }, [&] { at::native_dropout(x, 0.1, true); });
}

void losses(int64_t rows, int64_t width) {
  const at::Tensor x = at::randn({rows, width}), targets = at::randint(width, {rows}, at::kLong), one = at::ones({});
  at::Tensor work = x.clone();
  compare(shape_of("cross_entropy", rows, width), [&] { kernels::cross_entropy(x, targets); },
          [&] { at::nll_loss_forward(at::_log_softmax(x, 1, false), targets, {}, at::Reduction::Sum, -1); });
  compare(shape_of("cross_entropy_in_place", rows, width), [&] { kernels::cross_entropy_in_place(work, targets); },
          [&] {
            const at::Tensor logs = at::_log_softmax(x, 1, false);
            const auto [loss, weight] = at::nll_loss_forward(logs, targets, {}, at::Reduction::Sum, -1);
            at::_log_softmax_backward_data(at::nll_loss_backward(one, logs, targets, {}, at::Reduction::Sum, -1, weight), logs, 1, at::kFloat);
          });
}

void flat_buffers(int64_t n) {
  const at::Tensor g = at::randn({n}), scale = at::ones({1}), step = at::full({}, 3.0f);
  at::Tensor w = at::randn({n}), m = at::zeros({n}), v = at::zeros({n});
  compare(shape_of("adamw", 1, n), [&] { kernels::adamw(w, g, m, v, {}, n, scale, {1e-3, 0.9, 0.95, 1e-8, 0.1, 3}); },
          [&] { at::_fused_adamw_({w}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.95, 0.1, 1e-8, false, false); });
  compare(shape_of("sum_of_squares", 1, n), [&] { kernels::sum_of_squares(g); }, [&] { at::linalg_vector_norm(g); });
}

void products(int64_t m, int64_t n, int64_t k) {
  const at::Tensor a = at::randn({m, k}), bt = at::randn({n, k}), b = at::randn({k, n}), rows = at::randn({k, m});
  at::Tensor out = at::zeros({m, n});
  const auto name = [&](const char* what) { return shape_of(what, m, n) + " x " + std::to_string(k); };
  compare(name("matmul_nt"), [&] { kernels::matmul_nt(a, bt); }, [&] { at::mm(a, bt.t()); });
  compare(name("matmul_nn"), [&] { kernels::matmul_nn(a, b); }, [&] { at::mm(a, b); });
  compare(name("matmul_tn_out"), [&] { kernels::matmul_tn_out(out, rows, b, false); }, [&] { at::mm_out(out, rows.t(), b); });
}

void attention(int64_t batch, int64_t length, int64_t heads, int64_t width) {
  const int64_t rows = batch * length, columns = heads * width;
  const at::Tensor qkv = at::randn({rows, 3 * columns}), grad = at::randn({rows, columns});
  if (!kernels::short_attention_fits(qkv, length)) return;
  const at::Tensor parts = qkv.view({batch, length, 3, heads, width}), g = grad.view({batch, length, heads, width}).transpose(1, 2);
  const auto part = [&](int64_t i) { return parts.select(2, i).transpose(1, 2); };
  const auto theirs = at::_scaled_dot_product_flash_attention_for_cpu(part(0), part(1), part(2), 0.0, true);
  const auto ours = kernels::short_attention(qkv, batch, heads);
  compare(shape_of("attention", rows, columns), [&] { kernels::short_attention(qkv, batch, heads); },
          [&] { at::_scaled_dot_product_flash_attention_for_cpu(part(0), part(1), part(2), 0.0, true); });
  compare(shape_of("attention_backward", rows, columns), [&] { kernels::short_attention_backward(grad, qkv, ours, batch, heads); },
          [&] {
            at::_scaled_dot_product_flash_attention_for_cpu_backward(g, part(0), part(1), part(2), std::get<0>(theirs), std::get<1>(theirs), 0.0, true);
          });
}

}  // namespace

int main(int argc, char** argv) {
  cxxopts::Options options("kernels_bench", "The CPU kernels beside ATen's, one thread");
  options.add_options()("filter", "only operations whose name holds this", cxxopts::value<std::string>()->default_value(""))(
      "rounds", "timed rounds", cxxopts::value<int>()->default_value(std::to_string(rounds)));
  options.parse_positional({"filter", "rounds"});
  try {
    const auto given = options.parse(argc, argv);
    filter = given["filter"].as<std::string>();
    rounds = std::clamp(given["rounds"].as<int>(), 1, 10000);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kernels_bench: %s\n%s", e.what(), options.help().c_str());
    return 2;
  }
  at::set_num_threads(1);
  const c10::AutoGradMode no_graph(false);
  std::printf("%-44s %10s %10s %8s\n", "operation, rows x columns (float32)", "ours us", "ATen us", "ratio");
  for (const int64_t rows : {384, 768}) {
    for (const int64_t width : {128, 256, 512}) rows_of(rows, width);
  }
  losses(384, 65);
  losses(768, 65);
  losses(96, 50257);
  flat_buffers(800'000);
  flat_buffers(10'000'000);
  products(768, 384, 128);
  products(768, 512, 128);
  products(768, 65, 128);
  attention(12, 64, 4, 32);
  return 0;
}
