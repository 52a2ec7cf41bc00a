// Sums of low-rank gradients: see compression.h.

#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "comm/base/error.h"
#include "sharding/data_parallel/low_rank.h"
#include "sharding/data_parallel/two_phase_sum.h"

namespace muster::sharding {
namespace {

// Thin matrices lie transposed, (rank, n). A parameter that lies column by column is taken as its transpose.
struct Matrix {
  int parameter = 0;
  int64_t rank = 0, rows = 0, cols = 0;
  at::Tensor error;  // (rows, cols)
  at::Tensor q;      // (rank, cols), the last step's
  at::Tensor start;  // (rank, cols): where an iteration begins, and begins anew where a direction of q has died

  int64_t thin() const { return rank * (rows + cols); }
  int64_t bytes() const { return static_cast<int64_t>(error.nbytes() + q.nbytes() + start.nbytes()); }
};

// The gradient's elements where they lie, whatever the parameter's strides.
at::Tensor flat_gradient(const FlatModel& model, int parameter) {
  const Partition& partition = model.partition();
  const int bucket = partition.bucket_of(parameter);
  const int64_t begin = partition.offset(parameter) - partition.buckets()[bucket].begin;
  return model.whole_gradients(bucket).narrow(0, begin, model.parameters()[parameter]->numel());
}

at::Tensor all_finite(const at::Tensor& values) { return values.isfinite().all(); }

// The error that a rank keeps is its gradient's part outside of P's columns, c - P (c^T P)^T. That sums over the ranks to what
// the sum lacks, as the paper's c - P Q^T / ranks does, which also keeps how the rank differs from the mean and so grows
// without end.
class PowerSgdExchange : public BucketExchange {
 public:
  struct Member {
    Matrix* matrix;
    at::Tensor c;           // gradient + error, (rows, cols), in place of the gradient
    at::Tensor p, q, own_q;  // own_q: this rank's share of q
  };

  // exact: gradients that are summed as they are.
  PowerSgdExchange(std::vector<Member> members, std::vector<at::Tensor> exact, comm::Communicator& communicator)
      : communicator_(communicator), members_(std::move(members)), exact_(std::move(exact)) {
    std::vector<at::Tensor> parts;
    for (Member& m : members_) {
      m.c.add_(m.matrix->error);
      const at::Tensor& q = m.matrix->q;
      m.q = at::where(q.eq(0).all(1, true), m.matrix->start, q);
      parts.push_back(m.q.mm(m.c.t()).flatten());
    }
    parts.insert(parts.end(), exact_.begin(), exact_.end());
    left_ = at::cat(parts);
    first_ = communicator_.all_reduce(left_);
  }

  void turn() override {
    first_->wait();
    std::vector<at::Tensor> parts;
    int64_t at = 0;
    for (Member& m : members_) {
      m.p = left_.narrow(0, at, m.matrix->rank * m.matrix->rows).view({m.matrix->rank, m.matrix->rows});
      at += m.p.numel();
      orthogonalise(m.p);
      m.own_q = m.p.mm(m.c);
      parts.push_back(m.own_q.flatten());
    }
    exact_sums_ = left_.narrow(0, at, left_.numel() - at);
    right_ = at::cat(parts);
    second_ = communicator_.all_reduce(right_);
  }

  void finish() override {
    second_->wait();
    const at::Tensor finite = all_finite(right_).logical_and(all_finite(exact_sums_));
    int64_t at = 0;
    for (Member& m : members_) {
      m.q = right_.narrow(0, at, m.own_q.numel()).view(m.own_q.sizes());
      at += m.q.numel();
      finish(m, finite);
    }
    at = 0;
    for (const at::Tensor& e : exact_) {
      e.copy_(exact_sums_.narrow(0, at, e.numel()));
      at += e.numel();
    }
  }

 private:
  static void finish(const Member& m, const at::Tensor& finite) {
    const at::Tensor sent = at::empty_like(m.c);
    expand(m.p, m.own_q, sent);
    keep_where(finite, m.c.sub_(sent), m.matrix->error);
    keep_where(finite, m.q, m.matrix->q);
    expand(m.p, m.q, m.c);
  }

  comm::Communicator& communicator_;
  std::vector<Member> members_;
  const std::vector<at::Tensor> exact_;
  at::Tensor left_;        // all p, then all exact gradients
  at::Tensor right_;       // all q
  at::Tensor exact_sums_;  // a part of left_
  comm::WorkPtr first_, second_;
};

// A bucket without compressed matrices.
class ExactExchange : public BucketExchange {
 public:
  ExactExchange(const at::Tensor& gradients, comm::Communicator& communicator) : work_(communicator.all_reduce(gradients)) {}
  void turn() override {}
  void finish() override { work_->wait(); }

 private:
  const comm::WorkPtr work_;
};

class PowerSgd : public TwoPhaseSum {
 public:
  PowerSgd(FlatModel& model, comm::Communicator& communicator, int rank, uint64_t seed)
      : TwoPhaseSum(model), communicator_(communicator) {
    for (const Parameter* p : model.parameters()) matrices_.push_back(matrix_of(*p, rank, seed));
  }

  int64_t state_bytes() const override {
    int64_t bytes = 0;
    for (const Matrix& m : matrices_) bytes += m.rank > 0 ? m.bytes() : 0;
    return bytes;
  }

 private:
  // rank 0: it is summed exactly.
  Matrix matrix_of(const Parameter& p, int rank, uint64_t seed) const {
    Matrix m;
    if (p.shape.size() != 2) return m;
    const bool by_columns = p.strides[0] < p.strides[1];
    m = {p.index, rank, p.shape[by_columns], p.shape[!by_columns], {}, {}, {}};
    if (m.thin() >= m.rows * m.cols) return {};
    m.error = at::zeros({m.rows, m.cols}, model_.grad_options());
    m.start = normal_numbers(seed, p.name, m.rank, m.cols).to(model_.grad_options());
    m.q = m.start.clone();
    return m;
  }

  std::unique_ptr<BucketExchange> start(int bucket) override {
    std::vector<PowerSgdExchange::Member> members;
    std::vector<at::Tensor> exact;
    for (const int i : model_.partition().buckets()[bucket].parameters) {
      Matrix& m = matrices_[i];
      const at::Tensor gradient = flat_gradient(model_, i);
      if (m.rank == 0) {
        exact.push_back(gradient);
        continue;
      }
      if (model_.parameters()[i]->frozen) m.error.zero_();
      members.push_back({&m, gradient.view({m.rows, m.cols}), {}, {}, {}});
    }
    if (members.empty()) return std::make_unique<ExactExchange>(model_.whole_gradients(bucket), communicator_);
    return std::make_unique<PowerSgdExchange>(std::move(members), std::move(exact), communicator_);
  }

  comm::Communicator& communicator_;
  std::vector<Matrix> matrices_;  // by parameter
};

}  // namespace

std::unique_ptr<CompressedSum> make_power_sgd(FlatModel& model, comm::Communicator& communicator, int rank, uint64_t seed) {
  MUSTER_CHECK(rank > 0);
  if (communicator.size() == 1) return std::make_unique<NoSum>();
  return std::make_unique<PowerSgd>(model, communicator, rank, seed);
}

}  // namespace muster::sharding
