// The CPU half of optimizers.h. Loops run over parts of fixed size, so that where a vector loop ends does not depend on the threads.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "worker/kernels/cpu_common.h"
#include "worker/kernels/cpu_vector_math.h"
#include "worker/kernels/dispatch_optimizers.h"
#include "worker/kernels/eight_bit_map.h"

namespace muster::worker::kernels {
namespace {

template <typename T>
struct SgdFactors {
  SgdFactors(const SgdStep& s, T scale, bool decays)
      : grad_scale(scale),
        momentum(static_cast<T>(s.momentum)),
        lr(static_cast<T>(s.lr)),
        decay(static_cast<T>(decays && !s.decoupled ? s.weight_decay : 0)),
        keep(static_cast<T>(decays && s.decoupled ? 1.0 - s.lr * s.weight_decay : 1)),
        of_grad(s.nesterov ? T(1) : T(0)),
        of_momentum(s.nesterov ? momentum : T(1)) {}
  T grad_scale, momentum, lr, decay, keep, of_grad, of_momentum;
};

template <typename T>
MUSTER_INLINE void sgd_loop(T* __restrict w, const T* __restrict g, T* __restrict m, int64_t n, const SgdFactors<T>& f) {
  for (int64_t i = 0; i < n; ++i) {
    const T d = g[i] * f.grad_scale + f.decay * w[i];
    m[i] = f.momentum * m[i] + d;
    w[i] = w[i] * f.keep - f.lr * (f.of_grad * d + f.of_momentum * m[i]);
  }
}
MUSTER_CLONES void sgd_range(float* w, const float* g, float* m, int64_t n, const SgdFactors<float>& f) { sgd_loop(w, g, m, n, f); }
void sgd_range(double* w, const double* g, double* m, int64_t n, const SgdFactors<double>& f) { sgd_loop(w, g, m, n, f); }

template <typename T>
struct LionFactors {
  LionFactors(const LionStep& s, T scale, bool decays)
      : grad_scale(scale),
        beta1(static_cast<T>(s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        lr(static_cast<T>(s.lr)),
        keep(static_cast<T>(decays ? 1.0 - s.lr * s.weight_decay : 1)) {}
  T grad_scale, beta1, beta2, lr, keep;
};

template <typename T>
MUSTER_INLINE void lion_loop(T* __restrict w, const T* __restrict g, T* __restrict m, int64_t n, const LionFactors<T>& f) {
  const T rest1 = 1 - f.beta1, rest2 = 1 - f.beta2;
  for (int64_t i = 0; i < n; ++i) {
    const T grad = g[i] * f.grad_scale, mix = f.beta1 * m[i] + rest1 * grad;
    const T up = mix > 0 ? f.lr : T(0), down = mix < 0 ? f.lr : T(0);
    w[i] = w[i] * f.keep - (up - down);
    m[i] = f.beta2 * m[i] + rest2 * grad;
  }
}
MUSTER_CLONES void lion_range(float* w, const float* g, float* m, int64_t n, const LionFactors<float>& f) { lion_loop(w, g, m, n, f); }
void lion_range(double* w, const double* g, double* m, int64_t n, const LionFactors<double>& f) { lion_loop(w, g, m, n, f); }

// ---- 8 bits: each function takes one block --------------------------------------------------------------------------
constexpr std::array<float, 256> kSignedMap = dynamic_map(true), kUnsignedMap = dynamic_map(false);

template <typename T>
MUSTER_INLINE void decode_loop(const uint8_t* __restrict codes, float scale, const float* __restrict map, T* __restrict values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(map[codes[i]] * scale);
}
MUSTER_CLONES void decode_block(const uint8_t* codes, float scale, const float* map, float* values, int64_t n) {
  decode_loop(codes, scale, map, values, n);
}
void decode_block(const uint8_t* codes, float scale, const float* map, double* values, int64_t n) { decode_loop(codes, scale, map, values, n); }

template <typename T>
MUSTER_INLINE float largest_of(const T* values, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  const auto take = [&](int l) __attribute__((always_inline)) {
    const float size = std::fabs(static_cast<float>(values[i + l]));
    lanes[l] = size > lanes[l] ? size : lanes[l];
  };
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) take(l);
  }
  for (int l = 0; i + l < n; ++l) take(l);
  return *std::max_element(lanes, lanes + kLanes);
}

// Returns the scale.
template <bool kSigned, typename T>
MUSTER_INLINE float encode_loop(const T* __restrict values, uint8_t* __restrict codes, int64_t n) {
  const float largest = largest_of(values, n), inverse = inverse_scale(largest);
  for (int64_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(values[i]) * inverse;
    codes[i] = static_cast<uint8_t>(kSigned ? nearest_signed_code(x) : nearest_unsigned_code(x, values[i] > 0));
  }
  return largest;
}
MUSTER_CLONES float encode_signed(const float* values, uint8_t* codes, int64_t n) { return encode_loop<true>(values, codes, n); }
MUSTER_CLONES float encode_unsigned(const float* values, uint8_t* codes, int64_t n) { return encode_loop<false>(values, codes, n); }
float encode_signed(const double* values, uint8_t* codes, int64_t n) { return encode_loop<true>(values, codes, n); }
float encode_unsigned(const double* values, uint8_t* codes, int64_t n) { return encode_loop<false>(values, codes, n); }

// ---- over the buffers -------------------------------------------------------------------------------------------------
// f(begin, end) for parts [i * size, (i + 1) * size) of [0, n).
template <typename F>
void for_each_part(int64_t n, int64_t size, F&& f) {
  at::parallel_for(0, (n + size - 1) / size, std::max<int64_t>(1, kBlockElements / size), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) f(i * size, std::min(n, (i + 1) * size));
  });
}

// f(scale) in master's type, then the model copy; nothing where the scale is not finite.
template <typename F>
void update(const at::Tensor& master, const at::Tensor& model, const at::Tensor& grad_scale, F&& f) {
  const bool done = by_type(master, [&](auto zero) {
    using T = decltype(zero);
    const T scale = *grad_scale.const_data_ptr<T>();
    if (std::isfinite(scale)) f(scale);
    return std::isfinite(scale);
  });
  if (done && model.defined()) model.copy_(master);
}

void sgd_momentum_cpu(at::Tensor master, at::Tensor grad, at::Tensor momentum, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                      const SgdStep& step) {
  update(master, model, grad_scale, [&]<typename T>(T scale) {
    const SgdFactors<T> decays(step, scale, true), stays(step, scale, false);
    const at::Tensor g = as(grad, master);
    const T* from = g.const_data_ptr<T>();
    T *w = data_of<T>(master), *m = data_of<T>(momentum);
    for_each_part(master.numel(), kBlockElements, [&](int64_t begin, int64_t end) {
      const int64_t middle = std::clamp(decay_elements, begin, end);
      sgd_range(w + begin, from + begin, m + begin, middle - begin, decays);
      sgd_range(w + middle, from + middle, m + middle, end - middle, stays);
    });
  });
}

void lion_cpu(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
              const LionStep& step) {
  update(master, model, grad_scale, [&]<typename T>(T scale) {
    const LionFactors<T> decays(step, scale, true), stays(step, scale, false);
    const at::Tensor g = as(grad, master);
    const T* from = g.const_data_ptr<T>();
    T *w = data_of<T>(master), *average = data_of<T>(m);
    for_each_part(master.numel(), kBlockElements, [&](int64_t begin, int64_t end) {
      const int64_t middle = std::clamp(decay_elements, begin, end);
      lion_range(w + begin, from + begin, average + begin, middle - begin, decays);
      lion_range(w + middle, from + middle, average + middle, end - middle, stays);
    });
  });
}

struct MomentPointers {
  explicit MomentPointers(const EightBitMoment& m) : codes(m.codes.data_ptr<uint8_t>()), scales(m.scales.data_ptr<float>()) {}
  uint8_t* codes;
  float* scales;
};

void adamw_8bit_cpu(at::Tensor master, at::Tensor grad, const EightBitMoment& m, const EightBitMoment& v, at::Tensor model, int64_t decay_elements,
                    const at::Tensor& grad_scale, const AdamWStep& step) {
  update(master, model, grad_scale, [&]<typename T>(T scale) {
    const AdamWFactors<T> factors(step, scale);
    const at::Tensor g = as(grad, master);
    const T* from = g.const_data_ptr<T>();
    T* w = data_of<T>(master);
    const MomentPointers first(m), second(v);
    for_each_part(master.numel(), kEightBitBlock, [&](int64_t begin, int64_t end) {
      const int64_t block = begin / kEightBitBlock, n = end - begin, middle = std::clamp(decay_elements, begin, end) - begin;
      alignas(64) T m_values[kEightBitBlock], v_values[kEightBitBlock];
      decode_block(first.codes + begin, first.scales[block], kSignedMap.data(), m_values, n);
      decode_block(second.codes + begin, second.scales[block], kUnsignedMap.data(), v_values, n);
      adamw_range(w + begin, from + begin, m_values, v_values, middle, factors, factors.decay);
      adamw_range(w + begin + middle, from + begin + middle, m_values + middle, v_values + middle, n - middle, factors, T(1));
      first.scales[block] = encode_signed(m_values, first.codes + begin, n);
      second.scales[block] = encode_unsigned(v_values, second.codes + begin, n);
    });
  });
}

void encode_8bit_cpu(const at::Tensor& values, const EightBitMoment& moment, bool is_signed) {
  by_type(values, [&](auto zero) {
    using T = decltype(zero);
    const T* from = values.const_data_ptr<T>();
    const MomentPointers to(moment);
    for_each_part(values.numel(), kEightBitBlock, [&](int64_t begin, int64_t end) {
      uint8_t* codes = to.codes + begin;
      to.scales[begin / kEightBitBlock] = is_signed ? encode_signed(from + begin, codes, end - begin) : encode_unsigned(from + begin, codes, end - begin);
    });
    return 0;
  });
}

at::Tensor decode_8bit_cpu(const EightBitMoment& moment, bool is_signed) {
  at::Tensor values = at::empty({moment.codes.numel()}, moment.scales.options());
  float* to = values.mutable_data_ptr<float>();
  const MomentPointers from(moment);
  const float* map = is_signed ? kSignedMap.data() : kUnsignedMap.data();
  for_each_part(values.numel(), kEightBitBlock, [&](int64_t begin, int64_t end) {
    decode_block(from.codes + begin, from.scales[begin / kEightBitBlock], map, to + begin, end - begin);
  });
  return values;
}

}  // namespace

const OptimizerTable& cpu_optimizer_table() {
  static const OptimizerTable table = {sgd_momentum_cpu, lion_cpu, adamw_8bit_cpu, encode_8bit_cpu, decode_8bit_cpu};
  return table;
}

}  // namespace muster::worker::kernels
