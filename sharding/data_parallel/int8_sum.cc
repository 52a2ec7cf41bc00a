// Sums of int8 codes: see compression.h.

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "sharding/data_parallel/int8_codec.h"
#include "sharding/data_parallel/two_phase_sum.h"

namespace muster::sharding {
namespace {

// A rank adds its own gradient to the part that it sums as it is; so that part of its kept error is free, and holds what the
// sum's codes leave out.
class Int8Exchange : public BucketExchange {
 public:
  // gradients, error: (elements) of the bucket.
  Int8Exchange(const at::Tensor& gradients, const at::Tensor& error, comm::Communicator& communicator)
      : communicator_(communicator),
        layout_(gradients.numel(), communicator.size()),
        rank_(communicator.rank()),
        gradients_(gradients),
        error_(error),
        outgoing_(rows()),
        incoming_(rows()) {
    gradients_.add_(error_);
    encode_int8(gradients_, outgoing_);
    all_to_all();
  }

  void turn() override {
    first_->wait();
    sum_part();
    gathered_ = rows();
    const at::Tensor own = gathered_[rank_];
    encode_int8(sum_, own.unsqueeze(0));
    second_ = communicator_.all_gather(gathered_.flatten(), own);
    incoming_.reset();
  }

  void finish() override {
    second_->wait();
    // What this rank has sent of every part; of its own, what all have got.
    part(gradients_).copy_(sum_);
    outgoing_[rank_].copy_(gathered_[rank_]);
    decode_int8(outgoing_, gradients_, Into::kSubtract);
    keep_where(all_finite_int8(gathered_), gradients_, error_);
    decode_int8(gathered_, gradients_);
  }

 private:
  at::Tensor rows() const { return at::empty({layout_.parts, layout_.row_bytes}, gradients_.options().dtype(at::kByte)); }
  // What this rank sums.
  at::Tensor part(const at::Tensor& bucket) const { return bucket.narrow(0, layout_.begin(rank_), layout_.size(rank_)); }

  void all_to_all() {
    communicator_.group_begin();
    for (int peer = 0; peer < layout_.parts; ++peer) {
      if (peer == rank_) continue;
      // The group's Work is the one that is waited for.
      static_cast<void>(communicator_.send(outgoing_[peer], peer));
      static_cast<void>(communicator_.recv(incoming_[peer], peer));
    }
    first_ = communicator_.group_end();
  }

  void sum_part() {
    sum_ = at::zeros_like(part(gradients_));
    for (int r = 0; r < layout_.parts; ++r) {
      if (r == rank_) {
        sum_.add_(part(gradients_));
      } else {
        decode_int8(incoming_.narrow(0, r, 1), sum_, Into::kAdd);
      }
    }
  }

  comm::Communicator& communicator_;
  const Int8Layout layout_;
  const int rank_;
  const at::Tensor gradients_, error_;
  at::Tensor outgoing_, incoming_, gathered_;  // (ranks, row_bytes): by part, by sender, by part
  at::Tensor sum_;                             // of this rank's part
  comm::WorkPtr first_, second_;
};

class Int8Sum : public TwoPhaseSum {
 public:
  Int8Sum(FlatModel& model, comm::Communicator& communicator)
      : TwoPhaseSum(model),
        communicator_(communicator),
        layout_(model.partition()),
        error_(at::zeros({layout_.size()}, model.grad_options())) {}

  int64_t state_bytes() const override { return static_cast<int64_t>(error_.nbytes()); }

 private:
  std::unique_ptr<BucketExchange> start(int bucket) override {
    for (const Parameter* p : model_.parameters()) {
      if (p->frozen && layout_.bucket_of(p->index) == bucket) of(*p, error_, layout_).zero_();
    }
    const auto& range = layout_.buckets()[bucket];
    const at::Tensor error = error_.narrow(0, range.begin, range.size());
    return std::make_unique<Int8Exchange>(model_.whole_gradients(bucket), error, communicator_);
  }

  void follow_layout() override {
    const Partition& now = model_.partition();
    const auto moved = [&](const Parameter* p) { return now.offset(p->index) != layout_.offset(p->index); };
    const auto& parameters = model_.parameters();
    if (now.size() == layout_.size() && std::none_of(parameters.begin(), parameters.end(), moved)) return;
    const at::Tensor error = at::zeros({now.size()}, error_.options());
    for (const Parameter* p : parameters) of(*p, error, now).copy_(of(*p, error_, layout_));
    error_ = error;
    layout_ = now;
  }

  static at::Tensor of(const Parameter& parameter, const at::Tensor& flat, const Partition& layout) {
    return flat.narrow(0, layout.offset(parameter.index), parameter.numel());
  }

  comm::Communicator& communicator_;
  Partition layout_;  // of error_
  at::Tensor error_;
};

}  // namespace

std::unique_ptr<CompressedSum> make_int8_sum(FlatModel& model, comm::Communicator& communicator) {
  if (communicator.size() == 1) return std::make_unique<NoSum>();
  return std::make_unique<Int8Sum>(model, communicator);
}

}  // namespace muster::sharding
