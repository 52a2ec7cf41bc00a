#pragma once
// Collectives over a segment that all ranks of a node map.
//
// An all-reduce walks the tensor in chunks. Of each chunk a rank copies in what the others will reduce, reduces its own slice
// of all ranks' data in rank order, publishes the result in the part of its slot that nobody else needs, and copies the others'
// results out; three chunks are in work at a time. Small tensors take one step: all write, all reduce everything.

#include <deque>

#include "comm/collective/host/data_path.h"
#include "comm/collective/host/shared_segment.h"

namespace muster::comm::host {

class SharedPath : public DataPath {
 public:
  // Every rank has attached the segment. pids: of all ranks; those of other processes are watched.
  SharedPath(std::shared_ptr<Session> session, std::unique_ptr<SharedSegment> segment, const std::vector<int>& pids);
  ~SharedPath() override;

  std::string_view name() const override { return "shm"; }
  void run(std::span<const Operation> operations) override;
  void interrupt() override { report(); }
  void report() override;

 private:
  // One send or receive in progress.
  struct Transfer {
    Operation operation;
    uint64_t chunk, end, first;  // chunks of the direction's stream: next, past the last, first
    bool finished() const { return chunk == end; }
  };
  // One collective in progress.
  struct Pass {
    const Operation& operation;
    size_t step = 0;       // elements of a chunk
    uint64_t chunks = 0;
    size_t first(uint64_t i) const { return i * step; }
    size_t count(uint64_t i) const { return std::min(step, operation.count - i * step); }
  };
  // Slices of a chunk of n elements: the part that `rank` reduces.
  struct Slice {
    size_t first, count;
  };

  // collectives (shared_path.cc)
  void collective(const Operation& operation);
  void all_reduce(const Operation& operation);
  void all_reduce_small(const Operation& operation);
  void reduce_scatter(const Operation& operation);
  void all_gather(const Operation& operation);
  void broadcast(const Operation& operation);
  void barrier(const Operation& operation);
  Pass make_pass(const Operation& operation, size_t bytes_of_element) const;
  Slice slice(const Pass& pass, uint64_t i, int rank) const;
  void all_reduce_stage(const Pass& pass, uint64_t i);
  void all_reduce_combine(const Pass& pass, uint64_t i);
  void all_reduce_collect(const Pass& pass, uint64_t i);
  void reduce_scatter_stage(const Pass& pass, uint64_t i);
  void reduce_scatter_combine(const Pass& pass, uint64_t i);
  void broadcast_root(const Pass& pass);
  void broadcast_leaf(const Pass& pass);
  void await_free_slot(const Operation& operation, uint64_t i);
  void await_all(const Operation& operation, std::atomic<uint64_t> RankState::*counter, uint64_t value);
  void post(const Operation& operation, uint64_t i);
  void publish(std::atomic<uint64_t> RankState::*counter, uint64_t value);
  void enter(const Operation& operation);
  void verify(const Operation& operation);
  void leave(uint64_t chunks);

  // point to point (shared_transfers.cc)
  void begin_transfer(const Operation& operation);
  void finish_transfers();
  bool pump();
  bool advance(Transfer& transfer);
  bool push_chunk(Transfer& transfer);
  bool pull_chunk(Transfer& transfer);
  uint64_t& chunks_of(const Operation& operation);

  // waiting (shared_wait.cc)
  using Arrived = std::function<bool(int rank)>;
  template <typename Predicate>
  void await(const Operation& operation, const Predicate& arrived);
  void await_slowly(const Operation& operation, const Arrived& arrived);
  bool all_arrived(const Arrived& arrived) const;
  void check_health(const Operation& operation, const Arrived& arrived);
  void check_notice(const Operation& operation);
  void check_alive(const Operation& operation, const Arrived& arrived);
  [[noreturn]] void give_up(const Operation& operation, const Arrived& arrived);
  bool process_ended(int rank) const;

  const std::shared_ptr<Session> session_;
  const std::unique_ptr<SharedSegment> segment_;
  const int rank_, size_;
  const int spins_;
  std::vector<int> pidfds_;  // -1: a thread of this process, or the kernel cannot say
  uint64_t base_ = 0;        // first chunk of the next collective
  uint64_t collectives_ = 0;
  std::vector<const void*> inputs_;  // scratch of the reductions
  std::vector<uint64_t> outgoing_, incoming_;  // chunks so far, by peer
  std::deque<Transfer> transfers_;
};

}  // namespace muster::comm::host
