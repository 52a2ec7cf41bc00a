#pragma once
// Gradients summed over ranks in fewer bytes than an all-reduce takes.

#include <cstdint>
#include <memory>

#include "comm/collective/communicator.h"
#include "sharding/data_parallel/flat_model.h"

namespace muster::sharding {

// What a step's compression leaves out of a gradient is kept on the rank, and added to the next step's (error feedback; Seide
// et al., Interspeech 2014; Karimireddy et al., ICML 2019): over the steps nothing is lost, it comes later.
//
// A bucket with a non-finite gradient on any rank has a non-finite element on all of them afterwards, in the parameter that had
// it, and its kept error is what it was before. Nothing is compressed where there is one rank. A frozen parameter's error is
// dropped. Kept errors follow their parameters through FlatModel::rebuild. They are in units of the gradients: where a loss
// scale changes, they must be refused or scaled.
//
// Threads: the training thread. Ownership: model (ZeRO stage 0) and communicator must outlive it. All ranks make the same
// sequence of begin and end, not only the same order of buckets. Blocking: end() (CPU). Failure: PeerError from end().
class CompressedSum {
 public:
  virtual ~CompressedSum() = default;
  // Begins to sum a bucket's gradients over the ranks (issues the first phase, waits for no peer). Until end() the gradients
  // belong to this.
  virtual void begin(int bucket) = 0;
  // Ends it: gradients of the bucket hold the (approximate) sum, the same bits on every rank. Buckets in the order of begin.
  virtual void end(int bucket) = 0;
  // Persistent bytes on this rank. Buckets under way take more: see the two below.
  virtual int64_t state_bytes() const = 0;
};

// Blocks of 256 elements, each with a float32 scale, as symmetric int8. Every rank sums one part of a bucket from all ranks'
// codes (all-to-all), and sends the sum's codes to all (all-gather). A rank sends 2 (N - 1) / N * 1.016 bytes an element, beside
// the 2 (N - 1) / N * 4 of a float32 all-reduce. State: a gradient's bytes. A bucket under way: 3 bytes an element.
std::unique_ptr<CompressedSum> make_int8_sum(FlatModel& model, comm::Communicator& communicator);

// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): a matrix (rows, cols) moves as two thin ones, (rows, rank) and (cols,
// rank), from one power iteration on from the last step's. Matrices with rank * (rows + cols) >= rows * cols (all with min(rows,
// cols) <= rank are among them) and what is no matrix are summed exactly. seed: the same on all ranks. State: the compressed
// matrices' gradient bytes, and 2 * rank * cols elements of each.
std::unique_ptr<CompressedSum> make_power_sgd(FlatModel& model, comm::Communicator& communicator, int rank, uint64_t seed);

}  // namespace muster::sharding
