#pragma once
// The memory that the ranks of one node share for one communicator, and how a rank sleeps until another touches it.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/base/deadline.h"
#include "comm/collective/host/operation.h"

namespace muster::comm::host {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// Chunks of collectives are numbered from 0 over the life of the communicator, the same on all ranks; chunk c lies in slot
// c % kSlots of each rank. The counters of a rank are written by that rank alone and only grow.
constexpr uint64_t kSlots = 4;

struct alignas(64) RankState {
  std::atomic<uint64_t> entered;   // collectives whose signature is below
  std::atomic<uint64_t> posted;    // chunks that hold this rank's data
  std::atomic<uint64_t> reduced;   // chunks whose slice this rank has reduced
  std::atomic<uint64_t> released;  // chunks that this rank will read no more, on any rank
  std::atomic<uint32_t> closed;
  int32_t pid;
  // A rank is at most one collective ahead of another: each waits for all signatures.
  alignas(64) Signature signatures[4];
  alignas(64) std::atomic<uint32_t> bell;  // futex: changes whenever a peer has news for a sleeping rank
  std::atomic<uint32_t> sleeping;
};

// One direction between two ranks: chunk c of that stream lies in mail slot c % kSlots.
struct alignas(64) Mailbox {
  std::atomic<uint64_t> sent;  // by the sender
  alignas(64) std::atomic<uint64_t> taken;  // by the receiver
};
struct alignas(64) MailHeader {
  Signature signature;
};

// Why everything ends, written once by the first rank that knows.
struct Notice {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 readable
  int32_t culprit;
  int32_t reporter;
  char text[500];
};

// Threads: any (the memory synchronises itself). Ownership: unmaps when destroyed. The memory has no name in any file system:
// the kernel frees it with its last process, however that ends.
class SharedSegment {
 public:
  // How other processes of this node find it. Only valid while the creator keeps it open (see seal).
  struct Address {
    int pid = 0;
    int fd = -1;
    uint64_t cookie = 0;
    uint64_t bytes = 0;
  };
  // InputError where the memory cannot be had or reached: the caller falls back to sockets.
  static std::unique_ptr<SharedSegment> create(int ranks);
  static std::unique_ptr<SharedSegment> attach(const Address& address, int ranks);
  ~SharedSegment();

  const Address& address() const { return address_; }
  // All have attached: closes the file descriptor.
  void seal();

  size_t slot_bytes() const { return slot_bytes_; }
  size_t mail_bytes() const { return mail_bytes_; }
  Notice& notice() const;
  RankState& state(int rank) const;
  std::byte* slot(int rank, uint64_t chunk) const;
  Mailbox& mailbox(int from, int to) const;
  MailHeader& mail_header(int from, int to, uint64_t chunk) const;
  std::byte* mail(int from, int to, uint64_t chunk) const;

  // Wakes `rank` if it sleeps. The caller has published its news before.
  void ring(int rank, bool always = false) const;
  void ring_all(int self, bool always = false) const;
  // Sleeps until the bell of `rank` rings or the time is over, unless `ready` is true already.
  void sleep(int rank, milliseconds longest, const std::function<bool()>& ready) const;

 private:
  explicit SharedSegment(int ranks);
  void map(int fd);

  const int ranks_;
  const size_t slot_bytes_, mail_bytes_;
  size_t slots_at_, mailboxes_at_, mail_at_, total_;
  std::byte* base_ = nullptr;
  Address address_;
};

}  // namespace muster::comm::host
