#pragma once
// Collectives over ZeroMQ, one link between each pair of ranks.
//
// Every rank first shows all others what it calls (so that a mismatch or an absent rank is known by name), then data moves:
// large reductions around the ring (reduce-scatter, then all-gather: Patarasuk and Yuan, 2009), small ones by recursive doubling
// with the surplus over a power of two folded in before and out after, broadcasts down a binomial tree. A send is done when
// its bytes are queued.

#include <functional>

#include "comm/collective/host/data_path.h"
#include "comm/collective/host/socket_link.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm::host {

// transport: "tcp", "ipc" or "inproc". Collective over the rendezvous; blocks until all links are up. Failure: PeerError.
std::unique_ptr<DataPath> connect_sockets(Rendezvous& rendezvous, const std::shared_ptr<Session>& session,
                                          const std::string& transport, bool one_node);

class SocketPath : public DataPath {
 public:
  // links: by rank, connected; null for this rank. own_context: empty where it is shared by the process (inproc).
  SocketPath(std::shared_ptr<Session> session, std::string transport, std::unique_ptr<zmq::context_t> own_context,
             std::vector<std::unique_ptr<Link>> links);
  ~SocketPath() override;

  std::string_view name() const override { return transport_; }
  void run(std::span<const Operation> operations) override;
  void interrupt() override;
  void report() override;

 private:
  // Elements [first, first + count) of a tensor that is cut into one slice a rank.
  struct Slice {
    size_t first, count;
  };
  using Slices = std::vector<Slice>;

  // collectives (socket_path.cc)
  void collective(const Operation& operation);
  void all_reduce_small(const Operation& operation);
  void fold_in(const Operation& operation, int surplus, int power);
  void exchange_with(const Operation& operation, int partner);
  void ring_reduce(const Operation& operation, const Slices& slices, std::byte* out);
  void ring_gather(const Operation& operation, const Slices& slices);
  void broadcast(const Operation& operation);
  Slices equal_slices(const Operation& operation) const;
  Slices given_slices(const Operation& operation) const;
  void send_mail(const Operation& operation);
  void receive_mail(const Operation& operation);

  // messages (socket_messages.cc)
  void enter(const Operation& operation);
  void verify(const Operation& operation);
  Frame data_frame(size_t bytes) const;
  void send_data(int to, const std::byte* data, size_t bytes);
  Frame receive_data(const Operation& operation, int from, size_t bytes);
  Frame next_mail(const Operation& operation, size_t bytes);
  void await(const Operation& operation, const std::function<bool(int rank)>& arrived);
  void receive_any();
  void say_farewell();
  void check_health(const Operation& operation, const std::function<bool(int rank)>& arrived);
  void check_reported(const Operation& operation);
  [[noreturn]] void give_up(const Operation& operation, const std::function<bool(int rank)>& arrived);
  bool has_entered(int rank) const;
  Link& link(int rank) { return *links_[static_cast<size_t>((rank % size_ + size_) % size_)]; }

  const std::shared_ptr<Session> session_;
  const std::string transport_;
  const int rank_, size_;
  const std::unique_ptr<zmq::context_t> own_context_;
  const std::vector<std::unique_ptr<Link>> links_;
  int wake_fd_;
  std::vector<zmq::pollitem_t> poll_items_;  // the wake-up, then one a link
  std::vector<int> poll_ranks_;
  uint64_t collectives_ = 0;
};

}  // namespace muster::comm::host
