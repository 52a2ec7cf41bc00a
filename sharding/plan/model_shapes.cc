#include "sharding/plan/model_shapes.h"

#include <fmt/format.h>

namespace muster::sharding {
namespace {

class List {
 public:
  explicit List(const ModelShape& shape) : shape_(shape) {}
  void matrix(const std::string& name, int64_t rows, int64_t columns) { specs_.push_back({name, {rows, columns}, true, unit_}); }
  void linear(const std::string& name, int64_t out, int64_t in) {
    matrix(name + ".weight", out, in);
    bias(name, out);
  }
  void norm(const std::string& name) {
    specs_.push_back({name + ".weight", {shape_.hidden_size}, false, unit_});
    bias(name, shape_.hidden_size);
  }
  void next_unit() { ++unit_; }
  std::vector<ParameterSpec> take() { return std::move(specs_); }

 private:
  void bias(const std::string& name, int64_t size) {
    if (shape_.bias) specs_.push_back({name + ".bias", {size}, false, unit_});
  }
  const ModelShape& shape_;
  int unit_ = 0;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::vector<ParameterSpec> model_parameters(const ModelShape& s) {
  List list(s);
  list.matrix("token_embedding", s.vocab_size, s.hidden_size);
  if (!s.llama) list.matrix("position_embedding", s.seq_length, s.hidden_size);
  for (int64_t i = 0; i < s.num_layers; ++i) {
    const std::string name = fmt::format("block{}", i);
    list.next_unit();
    list.norm(name + ".norm1");
    list.linear(name + ".attention.qkv", s.qkv_width(), s.hidden_size);
    list.linear(name + ".attention.out", s.hidden_size, s.hidden_size);
    list.norm(name + ".norm2");
    list.linear(name + (s.llama ? ".mlp.gate_up" : ".mlp.up"), s.up_width(), s.hidden_size);
    list.linear(name + ".mlp.down", s.hidden_size, s.inner_width());
  }
  list.next_unit();
  list.norm("final_norm");
  if (!s.tied) list.matrix("head", s.vocab_size, s.hidden_size);
  return list.take();
}

}  // namespace muster::sharding
