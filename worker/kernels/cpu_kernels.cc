// The CPU half of kernels.h. float32 rows go through cpu_rows.h, which is vectorised; float64 through the same templates, exactly;
// 16-bit tensors are converted to float32 and back (CPU training in 16 bits is for tests).

#include <algorithm>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "comm/base/error.h"
#include "worker/kernels/cpu_common.h"
#include "worker/kernels/dispatch.h"
#include "worker/kernels/philox.h"

namespace muster::worker::kernels {
namespace {

at::Tensor dropout_cpu(const at::Tensor& x, const DropoutKey& key) {
  const at::Tensor in = wide(x);
  at::Tensor out = at::empty_like(in);
  const int64_t rows = x.dim() > 0 ? x.size(0) : 1, width = rows ? x.numel() / rows : 0;
  const auto threshold = static_cast<uint32_t>(dropout_threshold(key.p));
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    const T* from = in.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, rows, grain_for_rows(width), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        dropout_row({key.key, static_cast<uint64_t>(key.first_sample + s), threshold, 1.0 / (1.0 - key.p)}, from + s * width, to + s * width, width);
      }
    });
    return 0;
  });
  return as(out, x);
}

void adamw_cpu(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor v, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
               const AdamWStep& step) {
  const bool done = by_type(master, [&](auto zero) {
    using T = decltype(zero);
    const T scale = *grad_scale.const_data_ptr<T>();
    if (!std::isfinite(scale)) return false;
    const at::Tensor g = as(grad, master);
    const AdamWFactors<T> factors(step, scale);
    T *w = data_of<T>(master), *first = data_of<T>(m), *second = data_of<T>(v);
    const T* from = g.const_data_ptr<T>();
    at::parallel_for(0, master.numel(), kBlockElements, [&](int64_t begin, int64_t end) {
      const int64_t middle = std::clamp(decay_elements, begin, end);
      adamw_range(w + begin, from + begin, first + begin, second + begin, middle - begin, factors, factors.decay);
      adamw_range(w + middle, from + middle, first + middle, second + middle, end - middle, factors, T(1));
    });
    return true;
  });
  if (done && model.defined()) model.copy_(master);
}

at::Tensor sum_of_squares_cpu(const at::Tensor& x) {
  const at::Tensor in = wide(x);
  const int64_t n = in.numel(), blocks = (n + kBlockElements - 1) / kBlockElements;
  std::vector<double> sums(blocks);
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    const T* from = in.const_data_ptr<T>();
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) sums[b] = square_sum(from + b * kBlockElements, std::min(kBlockElements, n - b * kBlockElements));
    });
    return 0;
  });
  at::Tensor total = at::empty({1}, x.options().dtype(at::kDouble));
  total.fill_(std::accumulate(sums.begin(), sums.end(), 0.0));
  return total;
}

at::Tensor cross_entropy_cpu(at::Tensor logits, const at::Tensor& targets, double gradient_scale) {
  at::Tensor in = wide(logits);
  const int64_t rows = in.size(0), width = in.size(1);
  std::vector<double> losses(rows);
  const int64_t* target = targets.const_data_ptr<int64_t>();
  by_type(in, [&](auto zero) {
    using T = decltype(zero);
    T* values = data_of<T>(in);
    at::parallel_for(0, rows, grain_for_rows(width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        MUSTER_CHECK_LT(target[i], width);
        T* row = values + i * width;
        losses[i] = gradient_scale != 0 ? cross_entropy_row(row, width, target[i], static_cast<T>(gradient_scale)) : cross_entropy_loss(row, width, target[i]);
      }
    });
    return 0;
  });
  if (gradient_scale != 0 && is_half(logits)) logits.copy_(in);
  at::Tensor loss = at::empty({1}, in.options());
  loss.fill_(std::accumulate(losses.begin(), losses.end(), 0.0));
  return loss;
}

template <typename F>
at::Tensor elementwise(const at::Tensor& like, F&& f) {
  at::Tensor out = at::empty_like(like);
  by_type(like, [&](auto zero) {
    using T = decltype(zero);
    T* to = out.mutable_data_ptr<T>();
    at::parallel_for(0, like.numel(), kBlockElements, [&](int64_t begin, int64_t end) { f(to, begin, end); });
    return 0;
  });
  return out;
}

at::Tensor gelu_cpu(const at::Tensor& x) {
  const at::Tensor in = wide(x);
  return as(elementwise(in, [&]<typename T>(T* to, int64_t b, int64_t e) { gelu_range(in.const_data_ptr<T>() + b, to + b, e - b); }), x);
}

at::Tensor gelu_backward_cpu(const at::Tensor& grad, const at::Tensor& x) {
  const at::Tensor g = wide(grad), in = wide(x);
  return as(elementwise(in, [&]<typename T>(T* to, int64_t b, int64_t e) {
              gelu_backward_range(g.const_data_ptr<T>() + b, in.const_data_ptr<T>() + b, to + b, e - b);
            }), x);
}

LayerNormOut residual_layer_norm_cpu(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor r = wide(residual), b = wide(x), w = as(weight, r), c = bias.defined() ? as(bias, r) : bias;
  const int64_t rows = r.size(0), width = r.size(1);
  LayerNormOut out{x.defined() ? at::empty_like(r) : r, at::empty_like(r), at::empty({rows}, r.options()), at::empty({rows}, r.options())};
  by_type(r, [&](auto zero) {
    using T = decltype(zero);
    const LayerNormRow<T> row{data_of<T>(w), data_of<T>(c), width};
    const T *from = data_of<T>(r), *branch = data_of<T>(b);
    T *sum = data_of<T>(out.sum), *normed = data_of<T>(out.normed), *mean = data_of<T>(out.mean), *rstd = data_of<T>(out.rstd);
    at::parallel_for(0, rows, grain_for_rows(width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (branch) add_row(from + i * width, branch + i * width, sum + i * width, width);
        layer_norm_row(row, sum + i * width, normed + i * width, mean[i], rstd[i]);
      }
    });
    return 0;
  });
  if (is_half(residual)) return {x.defined() ? as(out.sum, residual) : residual, as(out.normed, residual), out.mean, out.rstd};
  return out;
}

at::Tensor residual_layer_norm_backward_cpu(const at::Tensor& grad_normed, const at::Tensor& grad_sum_in, const at::Tensor& sum, const at::Tensor& mean,
                                            const at::Tensor& rstd, const at::Tensor& weight, at::Tensor grad_weight, at::Tensor grad_bias) {
  const at::Tensor g = wide(grad_normed), past = wide(grad_sum_in), s = wide(sum), w = as(weight, s);
  const int64_t rows = s.size(0), width = s.size(1), blocks = (rows + kBlockRows - 1) / kBlockRows;
  at::Tensor out = at::empty_like(s);
  by_type(s, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> weight_blocks(blocks * width), bias_blocks(blocks * width);
    const T *gp = data_of<T>(g), *pp = data_of<T>(past), *sp = data_of<T>(s), *mp = data_of<T>(mean), *rp = data_of<T>(rstd);
    const LayerNormRow<T> row{data_of<T>(w), nullptr, width};
    T* to = data_of<T>(out);
    at::parallel_for(0, blocks, std::max<int64_t>(1, grain_for_rows(width) / kBlockRows), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        for (int64_t i = b * kBlockRows; i < std::min(rows, (b + 1) * kBlockRows); ++i) {
          layer_norm_row_backward(row, gp + i * width, pp ? pp + i * width : nullptr, sp + i * width, mp[i], rp[i], to + i * width,
                                  weight_blocks.data() + b * width, bias_blocks.data() + b * width);
        }
      }
    });
    add_blocks(grad_weight, weight_blocks, width);
    add_blocks(grad_bias, bias_blocks, width);
    return 0;
  });
  return as(out, sum);
}

}  // namespace

const KernelTable& cpu_table() {
  static const KernelTable table = {dropout_cpu,  adamw_cpu,         sum_of_squares_cpu,      cross_entropy_cpu,
                                    gelu_cpu,     gelu_backward_cpu, residual_layer_norm_cpu, residual_layer_norm_backward_cpu};
  return table;
}

}  // namespace muster::worker::kernels
