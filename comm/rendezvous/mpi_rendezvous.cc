#include <climits>
#include <cstdlib>
#include <map>
#include <thread>

#include <mpi.h>
#include <unistd.h>

#include "comm/base/error.h"
#include "comm/rendezvous/star_rendezvous.h"

namespace muster::comm {
namespace {

constexpr milliseconds kPoll(1);
constexpr milliseconds kStart(120'000);  // of the first exchange; the agents' own exchanges bring their deadline

// Few kilobytes travel here, and once: the plain transports start fastest and ask for no privileges.
void prefer_plain_transports() {
  setenv("OMPI_MCA_pml", "ob1", 0);
  setenv("OMPI_MCA_btl", "self,tcp,vader", 0);
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// MPI serves only the exchange: it is polled, since a data path or a blocking wait would not survive a dead member.
class MpiRendezvous : public Rendezvous {
 public:
  explicit MpiRendezvous(Place place) : place_(std::move(place)) {
    prefer_plain_transports();
    if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) throw PeerError({-1, "exchange", 0, "MPI_Init failed"});
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check_size();
    find_nodes();
  }

  // May hang where a member is gone: the caller arms a hard exit before.
  ~MpiRendezvous() override { MPI_Finalize(); }

  const Place& place() const override { return place_; }

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    const auto sizes = gather_sizes(static_cast<int64_t>(mine.size()), deadline);
    std::vector<int> counts(sizes.begin(), sizes.end()), offsets(sizes.size());
    int64_t total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      offsets[i] = static_cast<int>(total);
      total += sizes[i];
      if (total > INT_MAX) throw PeerError({-1, "exchange", sequence_, "more than 2 GiB in all"});
    }
    std::string all(total, '\0');
    MPI_Request request;
    check(MPI_Iallgatherv(mine.data(), counts[place_.rank], MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE,
                          MPI_COMM_WORLD, &request));
    wait(request, deadline);
    ++sequence_;
    std::vector<std::string> table;
    for (size_t i = 0; i < sizes.size(); ++i) table.push_back(all.substr(offsets[i], counts[i]));
    return table;
  }

 private:
  std::vector<int64_t> gather_sizes(int64_t mine, Deadline deadline) {
    std::vector<int64_t> sizes(place_.world_size);
    MPI_Request request;
    check(MPI_Iallgather(&mine, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, MPI_COMM_WORLD, &request));
    wait(request, deadline);
    return sizes;
  }

  void check_size() {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (size != place_.world_size)
      refuse("OMPI_COMM_WORLD_SIZE: found {}, but MPI says {} ranks; is mpirun of another MPI than muster-agent was built with?",
             place_.world_size, size);
  }

  // Open MPI tells no node number: nodes are counted in the order of their first rank.
  void find_nodes() {
    const auto hosts = exchange(host_name(), Deadline::after(kStart));
    std::map<std::string, int> nodes;
    for (const auto& host : hosts) nodes.try_emplace(host, static_cast<int>(nodes.size()));
    place_.node = nodes[hosts[place_.rank]];
    place_.node_count = static_cast<int>(nodes.size());
  }

  void check(int result) {
    if (result != MPI_SUCCESS) throw PeerError({-1, "exchange", sequence_, fmt::format("MPI error {}", result)});
  }

  void wait(MPI_Request& request, Deadline deadline) {
    for (int done = 0; true; std::this_thread::sleep_for(kPoll)) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done) return;
      if (deadline.expired())
        throw PeerError({-1, "exchange", sequence_, "not all ranks arrived before the deadline (over MPI)"});
    }
  }

  Place place_;
  long long sequence_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_mpi_rendezvous(const Bootstrap& bootstrap) {
  return std::make_unique<MpiRendezvous>(bootstrap.place);
}

}  // namespace muster::comm
