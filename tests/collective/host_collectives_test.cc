// Every operation, dtype and transport against a straightforward computation; the same bits on all ranks and every time.

#include <cmath>
#include <cstring>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "tests/collective/ranks.h"

namespace muster::comm {
namespace {

const at::ScalarType kReducible[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong};
const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};

// Element i of rank r: small integers, so that sums are exact in every dtype.
double value(int rank, int64_t i) { return static_cast<double>((i * 7 + rank * 5 + i / 11) % 13) - 6.0; }

template <typename T>
void fill_as(at::Tensor& tensor, int rank, int64_t first) {
  T* data = tensor.data_ptr<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = static_cast<T>(value(rank, first + i));
}

void fill(at::Tensor& tensor, int rank, int64_t first = 0) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return fill_as<double>(tensor, rank, first);
    case at::kFloat: return fill_as<float>(tensor, rank, first);
    case at::kBFloat16: return fill_as<at::BFloat16>(tensor, rank, first);
    case at::kHalf: return fill_as<at::Half>(tensor, rank, first);
    case at::kLong: return fill_as<int64_t>(tensor, rank, first);
    default: {
      auto* data = tensor.data_ptr<uint8_t>();
      for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = static_cast<uint8_t>(value(rank, first + i) + 6);
    }
  }
}

at::Tensor make(int rank, int64_t count, at::ScalarType dtype, int64_t first = 0) {
  at::Tensor tensor = at::empty({count}, dtype);
  fill(tensor, rank, first);
  return tensor;
}

double reduced(int size, ReduceOp op, int64_t i) {
  double result = value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = value(rank, i);
    result = op == ReduceOp::kSum ? result + next : op == ReduceOp::kMax ? std::max(result, next) : std::min(result, next);
  }
  return result;
}

at::Tensor expected(int size, ReduceOp op, int64_t count, at::ScalarType dtype, int64_t first = 0) {
  at::Tensor wide = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) wide.data_ptr<double>()[i] = reduced(size, op, first + i);
  return wide.to(dtype);
}

void require_equal(const at::Tensor& found, const at::Tensor& wanted, const std::string& what) {
  if (!at::equal(found, wanted)) throw std::runtime_error("wrong result of " + what);
}

std::string label(const char* what, at::ScalarType dtype, int64_t count) {
  return fmt::format("{} {} x {}", what, c10::toString(dtype), count);
}

void check_all_reduce(Communicator& comm, at::ScalarType dtype, int64_t count, ReduceOp op) {
  at::Tensor tensor = make(comm.rank(), count, dtype);
  comm.all_reduce(tensor, op)->wait();
  require_equal(tensor, expected(comm.size(), op, count, dtype), label("all_reduce", dtype, count));
}

// in place: the output is this rank's slice of the input.
void check_reduce_scatter(Communicator& comm, at::ScalarType dtype, int64_t count, ReduceOp op, bool in_place) {
  at::Tensor in = make(comm.rank(), count * comm.size(), dtype);
  at::Tensor out = in_place ? in.narrow(0, comm.rank() * count, count) : at::empty({count}, dtype);
  comm.reduce_scatter(out, in, op)->wait();
  require_equal(out, expected(comm.size(), op, count, dtype, comm.rank() * count), label("reduce_scatter", dtype, count));
}

void check_all_gather(Communicator& comm, at::ScalarType dtype, int64_t count, bool in_place) {
  at::Tensor out = at::zeros({count * comm.size()}, dtype);
  at::Tensor in = in_place ? out.narrow(0, comm.rank() * count, count) : at::empty({count}, dtype);
  fill(in, comm.rank());
  comm.all_gather(out, in)->wait();
  for (int rank = 0; rank < comm.size(); ++rank)
    require_equal(out.narrow(0, rank * count, count), make(rank, count, dtype), label("all_gather", dtype, count));
}

void check_broadcast(Communicator& comm, at::ScalarType dtype, int64_t count, int root) {
  at::Tensor tensor = make(comm.rank(), count, dtype);
  comm.broadcast(tensor, root)->wait();
  require_equal(tensor, make(root, count, dtype), label("broadcast", dtype, count));
}

// Around the ring, one pair at a time, then all at once in a group.
void check_send_recv(Communicator& comm, at::ScalarType dtype, int64_t count) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  at::Tensor mine = make(comm.rank(), count, dtype), theirs = at::zeros({count}, dtype);
  if (comm.rank() == 0) comm.send(mine, next)->wait();
  comm.recv(theirs, previous)->wait();
  if (comm.rank() != 0) comm.send(mine, next)->wait();
  require_equal(theirs, make(previous, count, dtype), label("recv", dtype, count));
  at::Tensor again = at::zeros({count}, dtype);
  comm.group_begin();
  (void)comm.send(mine, next);
  (void)comm.recv(again, previous);
  comm.group_end()->wait();
  require_equal(again, theirs, label("crossing recv", dtype, count));
}

struct Case {
  const char* transport;
  int size;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.transport << " " << c.size; }

class HostCollectives : public testing::TestWithParam<Case> {
 protected:
  ForcedTransport transport_{GetParam().transport};
  int size() const { return GetParam().size; }
  void on_all_ranks(const RankBody& body) { EXPECT_EQ(all_errors(run_ranks(size(), body)), ""); }
};

TEST_P(HostCollectives, EveryReductionOfEveryType) {
  on_all_ranks([](Communicator& comm) {
    for (at::ScalarType dtype : kReducible)
      for (int64_t count : {0, 1, 7, 1000, 20011})
        for (ReduceOp op : kOps) {
          check_all_reduce(comm, dtype, count, op);
          check_reduce_scatter(comm, dtype, count, op, false);
          check_reduce_scatter(comm, dtype, count, op, true);
        }
  });
}

TEST_P(HostCollectives, EveryMovementOfEveryType) {
  on_all_ranks([](Communicator& comm) {
    for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte})
      for (int64_t count : {0, 1, 7, 1000, 20011}) {
        check_all_gather(comm, dtype, count, false);
        check_all_gather(comm, dtype, count, true);
        for (int root = 0; root < comm.size(); ++root) check_broadcast(comm, dtype, count, root);
        check_send_recv(comm, dtype, count);
        comm.barrier()->wait();
      }
  });
}

TEST_P(HostCollectives, LargeTensors) {
  on_all_ranks([](Communicator& comm) {
    for (int64_t count : {100'003, 1'500'007}) {
      check_all_reduce(comm, at::kFloat, count, ReduceOp::kSum);
      check_reduce_scatter(comm, at::kBFloat16, count, ReduceOp::kSum, false);
      check_reduce_scatter(comm, at::kFloat, count / 3, ReduceOp::kMax, true);
      check_all_gather(comm, at::kFloat, count, false);
      check_broadcast(comm, at::kFloat, count, comm.size() - 1);
      check_send_recv(comm, at::kFloat, count);
    }
  });
}

// Values whose sum depends on the order of addition.
at::Tensor awkward(int rank, int64_t count, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({count}, at::kDouble);
  auto* data = tensor.data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) data[i] = std::sin(i * 1.37 + rank * 11.1) * std::exp((i + rank * 3) % 17 - 8.0);
  return tensor.to(dtype);
}

TEST_P(HostCollectives, TheSameBitsOnAllRanksAndEveryTime) {
  on_all_ranks([](Communicator& comm) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      for (int64_t count : {513, 300'001}) {
        at::Tensor first;
        for (int repetition = 0; repetition < 3; ++repetition) {
          at::Tensor sum = awkward(comm.rank(), count, dtype);
          comm.all_reduce(sum)->wait();
          if (!first.defined()) first = sum;
          require_equal(sum, first, label("repetition", dtype, count));
        }
        at::Tensor all = at::empty({count * comm.size()}, dtype);
        comm.all_gather(all, first)->wait();
        for (int rank = 0; rank < comm.size(); ++rank)
          require_equal(all.narrow(0, rank * count, count), first, label("other rank's sum", dtype, count));
      }
  });
}

TEST_P(HostCollectives, ManyInFlightEndInOrder) {
  on_all_ranks([](Communicator& comm) {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 40; ++i) {
      const int64_t count = i % 3 == 0 ? 50'000 : 10 + i;
      tensors.push_back(make(comm.rank(), count, at::kFloat));
      works.push_back(i % 2 == 0 ? comm.all_reduce(tensors.back()) : comm.broadcast(tensors.back(), i % comm.size()));
    }
    works.back()->wait();
    for (int i = 0; i < 40; ++i) {
      if (!works[i]->done()) throw std::runtime_error("an earlier operation is not done");
      const int64_t count = tensors[i].numel();
      require_equal(tensors[i], i % 2 == 0 ? expected(comm.size(), ReduceOp::kSum, count, at::kFloat)
                                           : make(i % comm.size(), count, at::kFloat), "an operation in flight");
    }
  });
}

// Large enough that no buffer holds a message: each send waits for its receiver.
TEST_P(HostCollectives, GroupsOfCrossingMessagesAndCollectives) {
  on_all_ranks([](Communicator& comm) {
    if (comm.size() == 1) return;
    const int64_t count = 700'001;
    at::Tensor mine = make(comm.rank(), count, at::kFloat), sum = make(comm.rank(), 40'000, at::kFloat);
    std::vector<at::Tensor> received;
    comm.group_begin();
    for (int peer = 0; peer < comm.size(); ++peer) {
      received.push_back(at::zeros({count}, at::kFloat));
      if (peer == comm.rank()) continue;
      (void)comm.recv(received.back(), peer);
      (void)comm.send(mine, peer);
    }
    (void)comm.all_reduce(sum);
    comm.group_end()->wait();
    require_equal(sum, expected(comm.size(), ReduceOp::kSum, 40'000, at::kFloat), "all_reduce in a group");
    for (int peer = 0; peer < comm.size(); ++peer)
      if (peer != comm.rank()) require_equal(received[peer], make(peer, count, at::kFloat), "recv in a group");
  });
}

// A rank that groups its receive with a collective does not block the sender, which sends first.
TEST_P(HostCollectives, GroupedReceiveMeetsUngroupedSend) {
  on_all_ranks([](Communicator& comm) {
    if (comm.size() == 1) return;
    at::Tensor data = make(0, 600'000, at::kFloat), sum = make(comm.rank(), 100, at::kFloat);
    if (comm.rank() == 0) comm.send(data, 1)->wait();
    at::Tensor got = at::zeros({600'000}, at::kFloat);
    comm.group_begin();
    (void)comm.all_reduce(sum);
    if (comm.rank() == 1) (void)comm.recv(got, 0);
    comm.group_end()->wait();
    if (comm.rank() == 1) require_equal(got, data, "recv");
  });
}

TEST_P(HostCollectives, CountsCallsAndBytes) {
  on_all_ranks([](Communicator& comm) {
    at::Tensor small = make(comm.rank(), 10, at::kFloat), large = at::zeros({10 * comm.size()}, at::kFloat);
    comm.all_reduce(small)->wait();
    comm.all_gather(large, small)->wait();
    comm.barrier()->wait();
    const Counters counters = comm.counters();
    const auto at_kind = [](OpKind kind) { return static_cast<size_t>(kind); };
    MUSTER_CHECK_EQ(counters.calls[at_kind(OpKind::kAllReduce)], 1);
    MUSTER_CHECK_EQ(counters.bytes[at_kind(OpKind::kAllReduce)], 40);
    MUSTER_CHECK_EQ(counters.bytes[at_kind(OpKind::kAllGather)], 40 * comm.size());
    MUSTER_CHECK_EQ(counters.calls[at_kind(OpKind::kBarrier)], 1);
    MUSTER_CHECK_EQ(counters.calls[at_kind(OpKind::kSend)], 0);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* transport : {"shm", "inproc", "ipc", "tcp"})
    for (int size : {1, 2, 3, 4, 7}) all.push_back({transport, size});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostCollectives, testing::ValuesIn(cases()), [](const auto& info) {
  return fmt::format("{}_{}", info.param.transport, info.param.size);
});

}  // namespace
}  // namespace muster::comm
