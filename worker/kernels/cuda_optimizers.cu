// The CUDA half of optimizers.h: one pass over the buffers each, four neighbours at a time. Slices that do not start at a multiple of four
// elements are read one by one.

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include <ATen/ops/empty.h>

#include "worker/kernels/cuda_common.cuh"
#include "worker/kernels/cuda_optimizers.h"
#include "worker/kernels/eight_bit_map.h"

namespace muster::worker::kernels {
namespace {

constexpr int kThreads = 256;

// Elements [first, first + 4) of a buffer, or as many of them as there are.
struct Quad {
  __device__ Quad(int64_t begin, int64_t n, bool aligned) : first(begin), left(n - begin), whole(aligned && n - begin >= 4) {}
  template <typename T>
  __device__ Four<T> load(const T* from) const {
    if (whole) return *reinterpret_cast<const Four<T>*>(from + first);
    Four<T> part{};
    for (int i = 0; i < 4; ++i) {
      if (i < left) part.v[i] = from[first + i];
    }
    return part;
  }
  template <typename T>
  __device__ void store(T* to, const Four<T>& values) const {
    if (whole) {
      *reinterpret_cast<Four<T>*>(to + first) = values;
      return;
    }
    for (int i = 0; i < 4; ++i) {
      if (i < left) to[first + i] = values.v[i];
    }
  }
  int64_t first, left;
  bool whole;
};

template <typename To, typename From>
__device__ Four<To> converted(const Four<From>& from) {
  Four<To> to;
  for (int i = 0; i < 4; ++i) to.v[i] = static_cast<To>(from.v[i]);
  return to;
}

// A buffer of any float dtype, or none. All threads take the same branch, and one kernel serves all dtypes.
struct AnyFloats {
  explicit AnyFloats(const at::Tensor& t) : data(t.defined() ? t.data_ptr() : nullptr), dtype(t.defined() ? t.scalar_type() : at::kFloat) {}
  template <typename W>
  __device__ Four<W> load(const Quad& quad) const {
    switch (dtype) {
      case at::kDouble: return converted<W>(quad.load(static_cast<const double*>(data)));
      case at::kBFloat16: return converted<W>(quad.load(static_cast<const __nv_bfloat16*>(data)));
      case at::kHalf: return converted<W>(quad.load(static_cast<const __half*>(data)));
      default: return converted<W>(quad.load(static_cast<const float*>(data)));
    }
  }
  template <typename W>
  __device__ void store(const Quad& quad, const Four<W>& values) const {
    if (!data) return;
    switch (dtype) {
      case at::kDouble: return quad.store(static_cast<double*>(data), converted<double>(values));
      case at::kBFloat16: return quad.store(static_cast<__nv_bfloat16*>(data), converted<__nv_bfloat16>(values));
      case at::kHalf: return quad.store(static_cast<__half*>(data), converted<__half>(values));
      default: return quad.store(static_cast<float*>(data), converted<float>(values));
    }
  }
  void* data;
  at::ScalarType dtype;
};

bool aligned_in_fours(std::initializer_list<const at::Tensor*> tensors) {
  for (const at::Tensor* t : tensors) {
    if (t->defined() && reinterpret_cast<uintptr_t>(t->data_ptr()) % (4 * t->element_size()) != 0) return false;
  }
  return true;
}

// What every update reads and writes.
template <typename W>
struct Buffers {
  W* master;
  AnyFloats grad, model;
  int64_t n, decay_elements;
  const W* grad_scale;
  bool aligned;
};
template <typename W>
Buffers<W> buffers_of(const at::Tensor& master, const at::Tensor& grad, const at::Tensor& model, int64_t decay_elements, const at::Tensor& grad_scale,
                      std::initializer_list<const at::Tensor*> state) {
  return {pointer<W>(master),  AnyFloats(grad),       AnyFloats(model), master.numel(),
          decay_elements,      pointer<W>(grad_scale), aligned_in_fours({&master, &grad, &model}) && aligned_in_fours(state)};
}

// ---- rules with one moment -------------------------------------------------------------------------------------------
template <typename W>
struct Sgd {
  explicit Sgd(const SgdStep& s)
      : momentum(static_cast<W>(s.momentum)),
        lr(static_cast<W>(s.lr)),
        decay(static_cast<W>(s.decoupled ? 0 : s.weight_decay)),
        keep(static_cast<W>(s.decoupled ? 1.0 - s.lr * s.weight_decay : 1)),
        of_grad(s.nesterov ? W(1) : W(0)),
        of_momentum(s.nesterov ? momentum : W(1)) {}
  __device__ void operator()(W& w, W g, W& m, bool decays) const {
    const W d = decays ? g + decay * w : g;
    m = momentum * m + d;
    w = (decays ? w * keep : w) - lr * (of_grad * d + of_momentum * m);
  }
  W momentum, lr, decay, keep, of_grad, of_momentum;
};

template <typename W>
struct Lion {
  explicit Lion(const LionStep& s)
      : beta1(static_cast<W>(s.beta1)), beta2(static_cast<W>(s.beta2)), lr(static_cast<W>(s.lr)), keep(static_cast<W>(1.0 - s.lr * s.weight_decay)) {}
  __device__ void operator()(W& w, W g, W& m, bool decays) const {
    const W mix = beta1 * m + (1 - beta1) * g;
    w = (decays ? w * keep : w) - (mix > 0 ? lr : mix < 0 ? -lr : W(0));
    m = beta2 * m + (1 - beta2) * g;
  }
  W beta1, beta2, lr, keep;
};

template <typename W, typename F>
__global__ void one_moment_kernel(Buffers<W> b, W* moment, F f) {
  const W scale = *b.grad_scale;
  if (!isfinite(scale)) return;
  const int64_t step = 4 * int64_t{gridDim.x} * blockDim.x;
  for (int64_t first = 4 * (blockIdx.x * int64_t{blockDim.x} + threadIdx.x); first < b.n; first += step) {
    const Quad quad(first, b.n, b.aligned);
    Four<W> w = quad.load(b.master), m = quad.load(moment);
    const Four<W> g = b.grad.template load<W>(quad);
    for (int i = 0; i < 4; ++i) f(w.v[i], g.v[i] * scale, m.v[i], first + i < b.decay_elements);
    quad.store(b.master, w);
    quad.store(moment, m);
    b.model.store(quad, w);
  }
}

template <template <typename> typename Rule, typename Step>
void update_with_one_moment(const at::Tensor& master, const at::Tensor& grad, const at::Tensor& m, const at::Tensor& model, int64_t decay_elements,
                            const at::Tensor& grad_scale, const Step& step) {
  if (master.numel() == 0) return;
  const auto launch = [&](auto zero) {
    using W = decltype(zero);
    one_moment_kernel<<<blocks_for(master.numel(), 4 * kThreads), kThreads, 0, stream()>>>(
        buffers_of<W>(master, grad, model, decay_elements, grad_scale, {&m}), pointer<W>(m), Rule<W>(step));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  master.scalar_type() == at::kDouble ? launch(double{}) : launch(float{});
}

// ---- 8 bits: a warp a block of 256, two quads a lane -------------------------------------------------------------------
constexpr int kWarps = kThreads / kWarp, kQuads = 2;
static_assert(kEightBitBlock == kWarp * 4 * kQuads);

struct MomentPointers {
  explicit MomentPointers(const EightBitMoment& m) : codes(pointer<uint8_t>(m.codes)), scales(pointer<float>(m.scales)) {}
  uint8_t* codes;
  float* scales;
};

// Shared by the thread block.
struct Map {
  float values[256];
  __device__ void fill(bool is_signed) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) values[i] = map_value(i, is_signed);
  }
};

// One warp's block.
template <typename W>
struct Values {
  Four<W> quads[kQuads];
};
struct Block {
  __device__ Block(int64_t number, int64_t n, bool aligned)
      : number(number), quads{Quad(number * kEightBitBlock + 4 * (threadIdx.x % kWarp), n, aligned),
                              Quad(number * kEightBitBlock + 4 * (kWarp + threadIdx.x % kWarp), n, aligned)} {}
  template <typename W>
  __device__ Values<W> decode(const MomentPointers& from, const Map& map) const {
    const float scale = from.scales[number];
    Values<W> values;
    for (int q = 0; q < kQuads; ++q) {
      const Four<uint8_t> codes = quads[q].load(from.codes);
      for (int i = 0; i < 4; ++i) values.quads[q].v[i] = i < quads[q].left ? static_cast<W>(map.values[codes.v[i]] * scale) : W(0);
    }
    return values;
  }
  // Values past the end must be 0. The whole warp calls this.
  template <bool kSigned, typename W>
  __device__ void encode(const Values<W>& values, const MomentPointers& to) const {
    float largest = 0;
    for (int q = 0; q < kQuads; ++q) {
      for (int i = 0; i < 4; ++i) largest = max(largest, fabsf(static_cast<float>(values.quads[q].v[i])));
    }
    largest = warp_max(largest);
    const float inverse = inverse_scale(largest);
    for (int q = 0; q < kQuads; ++q) {
      Four<uint8_t> codes;
      for (int i = 0; i < 4; ++i) {
        const W value = values.quads[q].v[i];
        const float x = static_cast<float>(value) * inverse;
        codes.v[i] = static_cast<uint8_t>(kSigned ? nearest_signed_code(x) : nearest_unsigned_code(x, value > 0));
      }
      quads[q].store(to.codes, codes);
    }
    if (threadIdx.x % kWarp == 0) to.scales[number] = largest;
  }
  int64_t number;
  Quad quads[kQuads];
};

__device__ int64_t warp_number() { return blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp; }
__device__ int64_t warps_in_all() { return int64_t{gridDim.x} * kWarps; }
int64_t blocks_of(int64_t n) { return (n + kEightBitBlock - 1) / kEightBitBlock; }

template <typename W>
struct AdamW {
  explicit AdamW(const AdamWStep& s)
      : beta1(static_cast<W>(s.beta1)),
        beta2(static_cast<W>(s.beta2)),
        step_size(static_cast<W>(s.lr / (1.0 - std::pow(s.beta1, static_cast<double>(s.step))))),
        inverse_correction2(static_cast<W>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step))))),
        eps(static_cast<W>(s.eps)),
        keep(static_cast<W>(1.0 - s.lr * s.weight_decay)) {}
  __device__ void operator()(W& w, W g, W& m, W& v, bool decays) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    w = w * (decays ? keep : W(1)) - step_size * m / (sqrt(v) * inverse_correction2 + eps);
  }
  W beta1, beta2, step_size, inverse_correction2, eps, keep;
};

template <typename W>
__global__ void adamw_8bit_kernel(Buffers<W> b, MomentPointers first, MomentPointers second, AdamW<W> f) {
  const W scale = *b.grad_scale;
  if (!isfinite(scale)) return;
  __shared__ Map with_sign, without;
  with_sign.fill(true);
  without.fill(false);
  __syncthreads();
  const int64_t blocks = (b.n + kEightBitBlock - 1) / kEightBitBlock;
  for (int64_t number = warp_number(); number < blocks; number += warps_in_all()) {
    const Block block(number, b.n, b.aligned);
    Values<W> m = block.template decode<W>(first, with_sign), v = block.template decode<W>(second, without);
    for (int q = 0; q < kQuads; ++q) {
      const Quad& quad = block.quads[q];
      Four<W> w = quad.load(b.master);
      const Four<W> g = b.grad.template load<W>(quad);  // 0 past the end, and so are m and v
      for (int i = 0; i < 4; ++i) f(w.v[i], g.v[i] * scale, m.quads[q].v[i], v.quads[q].v[i], quad.first + i < b.decay_elements);
      quad.store(b.master, w);
      b.model.store(quad, w);
    }
    block.template encode<true>(m, first);
    block.template encode<false>(v, second);
  }
}

template <typename W>
__global__ void encode_kernel(const W* values, MomentPointers to, int64_t n, bool is_signed, bool aligned) {
  const int64_t blocks = (n + kEightBitBlock - 1) / kEightBitBlock;
  for (int64_t number = warp_number(); number < blocks; number += warps_in_all()) {
    const Block block(number, n, aligned);
    Values<W> in;
    for (int q = 0; q < kQuads; ++q) in.quads[q] = block.quads[q].load(values);
    is_signed ? block.template encode<true>(in, to) : block.template encode<false>(in, to);
  }
}

__global__ void decode_kernel(MomentPointers from, float* values, int64_t n, bool is_signed, bool aligned) {
  __shared__ Map map;
  map.fill(is_signed);
  __syncthreads();
  const int64_t blocks = (n + kEightBitBlock - 1) / kEightBitBlock;
  for (int64_t number = warp_number(); number < blocks; number += warps_in_all()) {
    const Block block(number, n, aligned);
    const Values<float> out = block.decode<float>(from, map);
    for (int q = 0; q < kQuads; ++q) block.quads[q].store(values, out.quads[q]);
  }
}

}  // namespace

void sgd_momentum_cuda(at::Tensor master, at::Tensor grad, at::Tensor momentum, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
                       const SgdStep& step) {
  update_with_one_moment<Sgd>(master, grad, momentum, model, decay_elements, grad_scale, step);
}

void lion_cuda(at::Tensor master, at::Tensor grad, at::Tensor m, at::Tensor model, int64_t decay_elements, const at::Tensor& grad_scale,
               const LionStep& step) {
  update_with_one_moment<Lion>(master, grad, m, model, decay_elements, grad_scale, step);
}

void adamw_8bit_cuda(at::Tensor master, at::Tensor grad, const EightBitMoment& m, const EightBitMoment& v, at::Tensor model, int64_t decay_elements,
                     const at::Tensor& grad_scale, const AdamWStep& step) {
  if (master.numel() == 0) return;
  const auto launch = [&](auto zero) {
    using W = decltype(zero);
    adamw_8bit_kernel<<<blocks_for(blocks_of(master.numel()), kWarps), kThreads, 0, stream()>>>(
        buffers_of<W>(master, grad, model, decay_elements, grad_scale, {&m.codes, &v.codes}), MomentPointers(m), MomentPointers(v), AdamW<W>(step));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  master.scalar_type() == at::kDouble ? launch(double{}) : launch(float{});
}

void encode_8bit_cuda(const at::Tensor& values, const EightBitMoment& to, bool is_signed) {
  if (values.numel() == 0) return;
  const auto launch = [&](auto zero) {
    using W = decltype(zero);
    encode_kernel<<<blocks_for(blocks_of(values.numel()), kWarps), kThreads, 0, stream()>>>(
        static_cast<const W*>(pointer<W>(values)), MomentPointers(to), values.numel(), is_signed, aligned_in_fours({&values, &to.codes}));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  };
  values.scalar_type() == at::kDouble ? launch(double{}) : launch(float{});
}

at::Tensor decode_8bit_cuda(const EightBitMoment& from, bool is_signed) {
  const int64_t n = from.codes.numel();
  at::Tensor values = at::empty({n}, from.scales.options());
  if (n == 0) return values;
  decode_kernel<<<blocks_for(blocks_of(n), kWarps), kThreads, 0, stream()>>>(MomentPointers(from), pointer<float>(values), n, is_signed,
                                                                            aligned_in_fours({&from.codes, &values}));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return values;
}

}  // namespace muster::worker::kernels
