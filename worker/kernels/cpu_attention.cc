#include "worker/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "comm/base/error.h"
#include "worker/kernels/cpu_sgemm.h"
#include "worker/kernels/cpu_vector_math.h"

namespace muster::worker::kernels {
namespace {

constexpr int64_t kLongest = 512;

struct Sizes {
  int64_t batch, length, heads, groups, head_width, columns, width;  // columns of qkv, of out
  float scale;
  int64_t shared() const { return heads / groups; }  // query heads of a group
};

Sizes sizes_of(const at::Tensor& qkv, int64_t batch, const Heads& heads) {
  MUSTER_CHECK(qkv.is_contiguous() && qkv.dim() == 2 && heads.groups > 0);
  MUSTER_CHECK_EQ(qkv.size(0) % batch, 0);
  MUSTER_CHECK_EQ(heads.queries % heads.groups, 0);
  const int64_t columns = qkv.size(1), all = heads.queries + 2 * heads.groups, head_width = columns / all;
  MUSTER_CHECK_EQ(columns % all, 0);
  return {batch,   qkv.size(0) / batch,        heads.queries, heads.groups, head_width,
          columns, heads.queries * head_width, 1.0f / std::sqrt(static_cast<float>(head_width))};
}

// Where head h of batch row b lies in a (B * T, columns) buffer.
int64_t head_offset(const Sizes& s, int64_t b, int64_t h, int64_t columns) { return b * s.length * columns + h * s.head_width; }

// Softmax of scale * row[0, count), in place; the rest of the row (up to length) becomes zero.
void softmax_row(float* row, int64_t count, int64_t length, float scale) {
  const float top = vector_max(row, count);
  const float sum = vector_exp_sum(row, count, scale, top);
  vector_scale(row, count, 1.0f / sum);
  std::fill(row + count, row + length, 0.0f);
}

// d_scores from d_probabilities, in place: scale * p * (d - sum(p d)).
void softmax_row_backward(float* d, const float* p, int64_t count, int64_t length, float scale) {
  const float dot = vector_dot(d, p, count);
  for (int64_t i = 0; i < count; ++i) d[i] = scale * p[i] * (d[i] - dot);
  std::fill(d + count, d + length, 0.0f);
}

// One (batch row, query head): where its parts are. Keys and values lie in qkv behind the queries.
struct Part {
  int64_t query, key, value, out, probabilities;
  bool first;  // of its group
};

template <typename F>
void for_each_group(const Sizes& s, F&& f) {
  at::parallel_for(0, s.batch * s.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / s.groups, g = i % s.groups;
      for (int64_t h = g * s.shared(); h < (g + 1) * s.shared(); ++h) {
        f(Part{head_offset(s, b, h, s.columns), head_offset(s, b, s.heads + g, s.columns),
               head_offset(s, b, s.heads + s.groups + g, s.columns), head_offset(s, b, h, s.width),
               (b * s.heads + h) * s.length * s.length, h == g * s.shared()});
      }
    }
  });
}

}  // namespace

bool short_attention_fits(const at::Tensor& qkv, int64_t length) {
  return qkv.is_cpu() && qkv.scalar_type() == at::kFloat && length <= kLongest && sgemm_is_better();
}

ShortAttention short_attention(const at::Tensor& qkv, int64_t batch, const Heads& heads) {
  const Sizes s = sizes_of(qkv, batch, heads);
  ShortAttention result{at::empty({qkv.size(0), s.width}, qkv.options()),
                        at::empty({batch, s.heads, s.length, s.length}, qkv.options())};
  const float* in = qkv.const_data_ptr<float>();
  float* probabilities = result.probabilities.mutable_data_ptr<float>();
  float* out = result.out.mutable_data_ptr<float>();
  const int64_t t = s.length, d = s.head_width, stride = s.columns;
  for_each_group(s, [&](const Part& at) {
    float* p = probabilities + at.probabilities;
    sgemm({t, t, d, in + at.query, stride, false, in + at.key, stride, true, p, t, false});
    for (int64_t i = 0; i < t; ++i) softmax_row(p + i * t, i + 1, t, s.scale);
    sgemm({t, d, t, p, t, false, in + at.value, stride, false, out + at.out, s.width, false});
  });
  return result;
}

at::Tensor short_attention_backward(const at::Tensor& grad, const at::Tensor& qkv, const ShortAttention& forward, int64_t batch,
                                    const Heads& heads) {
  const Sizes s = sizes_of(qkv, batch, heads);
  MUSTER_CHECK(grad.is_contiguous() && grad.sizes() == forward.out.sizes());
  at::Tensor d_qkv = at::empty_like(qkv);
  const float* in = qkv.const_data_ptr<float>();
  const float* g = grad.const_data_ptr<float>();
  const float* probabilities = forward.probabilities.const_data_ptr<float>();
  float* d_in = d_qkv.mutable_data_ptr<float>();
  const int64_t t = s.length, d = s.head_width, stride = s.columns;
  for_each_group(s, [&](const Part& at) {
    const float *d_out = g + at.out, *p = probabilities + at.probabilities;
    thread_local std::vector<float> scores;
    scores.resize(t * t);
    sgemm({t, t, d, d_out, s.width, false, in + at.value, stride, true, scores.data(), t, false});
    for (int64_t i = 0; i < t; ++i) softmax_row_backward(scores.data() + i * t, p + i * t, i + 1, t, s.scale);
    sgemm({t, d, t, scores.data(), t, false, in + at.key, stride, false, d_in + at.query, stride, false});
    sgemm({t, d, t, scores.data(), t, true, in + at.query, stride, false, d_in + at.key, stride, !at.first});
    sgemm({t, d, t, p, t, true, d_out, s.width, false, d_in + at.value, stride, !at.first});
  });
  return d_qkv;
}

}  // namespace muster::worker::kernels
