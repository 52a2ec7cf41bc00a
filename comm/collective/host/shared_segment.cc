#include "comm/collective/host/shared_segment.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <random>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::comm::host {
namespace {

struct Header {
  uint64_t cookie;
  uint64_t ranks;
  alignas(64) Notice notice;
};

constexpr size_t kStatesAt = 1024;
static_assert(sizeof(Header) <= kStatesAt);

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// All slots in flight should stay in the last-level cache.
size_t choose_slot_bytes(int ranks) { return std::clamp<size_t>((size_t{4} << 20) / ranks, 64 << 10, 512 << 10) / 4096 * 4096; }
size_t choose_mail_bytes(int ranks) {
  const size_t boxes = size_t(ranks) * ranks * kSlots;
  return std::clamp<size_t>((size_t{16} << 20) / boxes, 4096, 128 << 10) / 64 * 64;
}

uint64_t random_cookie() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

SharedSegment::SharedSegment(int ranks)
    : ranks_(ranks), slot_bytes_(choose_slot_bytes(ranks)), mail_bytes_(choose_mail_bytes(ranks)) {
  const size_t pairs = size_t(ranks) * ranks;
  mailboxes_at_ = kStatesAt + ranks * sizeof(RankState);
  slots_at_ = round_up(mailboxes_at_ + pairs * sizeof(Mailbox), 4096);
  mail_at_ = slots_at_ + ranks * kSlots * slot_bytes_;
  total_ = round_up(mail_at_ + pairs * kSlots * (sizeof(MailHeader) + mail_bytes_), 4096);
}

std::unique_ptr<SharedSegment> SharedSegment::create(int ranks) {
  std::unique_ptr<SharedSegment> segment(new SharedSegment(ranks));
  const int fd = memfd_create("muster-collective", MFD_CLOEXEC);
  if (fd < 0) refuse("memfd_create: {}", std::strerror(errno));
  segment->address_ = {static_cast<int>(getpid()), fd, random_cookie(), segment->total_};
  // Take the memory now: a later shortage would be a SIGBUS.
  const int error = ftruncate(fd, segment->total_) != 0 ? errno : posix_fallocate(fd, 0, segment->total_);
  if (error != 0) refuse("no {} bytes of shared memory: {}", segment->total_, std::strerror(error));
  segment->map(fd);
  auto* header = reinterpret_cast<Header*>(segment->base_);
  header->cookie = segment->address_.cookie;
  header->ranks = ranks;
  return segment;
}

std::unique_ptr<SharedSegment> SharedSegment::attach(const Address& address, int ranks) {
  std::unique_ptr<SharedSegment> segment(new SharedSegment(ranks));
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) refuse("open {}: {}", path, std::strerror(errno));
  segment->address_ = {0, fd, address.cookie, address.bytes};
  struct stat status {};
  // Before it is mapped: this process id may be another program's in another container.
  if (fstat(fd, &status) != 0 || static_cast<size_t>(status.st_size) != segment->total_ || address.bytes != segment->total_)
    refuse("{} has {} bytes; wanted {}", path, status.st_size, segment->total_);
  segment->map(fd);
  const auto* header = reinterpret_cast<const Header*>(segment->base_);
  if (header->cookie != address.cookie || header->ranks != static_cast<uint64_t>(ranks))
    refuse("{} is not the segment of this group", path);
  segment->seal();
  return segment;
}

void SharedSegment::map(int fd) {
  void* memory = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) refuse("mmap of {} shared bytes: {}", total_, std::strerror(errno));
  base_ = static_cast<std::byte*>(memory);
}

SharedSegment::~SharedSegment() {
  seal();
  if (base_ != nullptr) munmap(base_, total_);
}

void SharedSegment::seal() {
  if (address_.fd >= 0) close(address_.fd);
  address_.fd = -1;
}

Notice& SharedSegment::notice() const { return reinterpret_cast<Header*>(base_)->notice; }
RankState& SharedSegment::state(int rank) const { return reinterpret_cast<RankState*>(base_ + kStatesAt)[rank]; }
std::byte* SharedSegment::slot(int rank, uint64_t chunk) const {
  return base_ + slots_at_ + (rank * kSlots + chunk % kSlots) * slot_bytes_;
}
Mailbox& SharedSegment::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(base_ + mailboxes_at_)[from * ranks_ + to];
}
MailHeader& SharedSegment::mail_header(int from, int to, uint64_t chunk) const {
  const size_t index = (size_t(from) * ranks_ + to) * kSlots + chunk % kSlots;
  return *reinterpret_cast<MailHeader*>(base_ + mail_at_ + index * (sizeof(MailHeader) + mail_bytes_));
}
std::byte* SharedSegment::mail(int from, int to, uint64_t chunk) const {
  return reinterpret_cast<std::byte*>(&mail_header(from, to, chunk) + 1);
}

void SharedSegment::ring(int rank, bool always) const {
  RankState& peer = state(rank);
  if (!always && peer.sleeping.load(std::memory_order_relaxed) == 0) return;
  peer.bell.fetch_add(1, std::memory_order_release);
  futex(peer.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

// The fence pairs with the one in sleep: either this rank sees `sleeping`, or the sleeper sees the news.
void SharedSegment::ring_all(int self, bool always) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < ranks_; ++rank)
    if (rank != self || always) ring(rank, always);
}

void SharedSegment::sleep(int rank, milliseconds longest, const std::function<bool()>& ready) const {
  RankState& mine = state(rank);
  const uint32_t before = mine.bell.load(std::memory_order_acquire);
  mine.sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready()) {
    const timespec timeout{longest.count() / 1000, longest.count() % 1000 * 1'000'000};
    futex(mine.bell, FUTEX_WAIT, before, &timeout);
  }
  mine.sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace muster::comm::host
