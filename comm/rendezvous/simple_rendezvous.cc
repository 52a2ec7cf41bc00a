// The two rendezvous that need no launcher: alone, and N threads of one process.

#include <condition_variable>
#include <mutex>
#include <optional>

#include "comm/base/error.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {
namespace {

class SingleRendezvous : public Rendezvous {
 public:
  SingleRendezvous() { place_.source = "single"; }
  const Place& place() const override { return place_; }
  std::vector<std::string> exchange(std::string_view mine, Deadline) override { return {std::string(mine)}; }

 private:
  Place place_;
};

// Where the threads meet. One round is open at a time; the last to arrive publishes it and opens the next.
class MeetingPoint {
 public:
  explicit MeetingPoint(int world_size) : world_size_(world_size), open_(world_size), here_(world_size) {}

  std::vector<std::string> exchange(int rank, std::string_view mine, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (broken_) fail(*broken_);
    const long long round = round_;
    open_[rank] = mine;
    here_[rank] = true;
    if (++arrived_ == world_size_) return publish();
    while (round_ == round && !broken_) {
      if (changed_.wait_until(lock, deadline.at()) == std::cv_status::timeout && round_ == round && !broken_) expire();
    }
    if (round_ == round) fail(*broken_);
    return *closed_;
  }

 private:
  std::vector<std::string> publish() {
    closed_ = std::make_shared<const std::vector<std::string>>(std::move(open_));
    open_.assign(world_size_, {});
    here_.assign(world_size_, false);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
    return *closed_;
  }

  void expire() {
    PeerError::Context context{-1, "exchange", round_, "did not arrive before the deadline: rank"};
    for (int rank = 0; rank < world_size_; ++rank) {
      if (here_[rank]) continue;
      if (context.rank < 0) context.rank = rank;
      context.cause += fmt::format(" {}", rank);
    }
    broken_ = context;
    changed_.notify_all();
  }

  [[noreturn]] static void fail(const PeerError::Context& context) { throw PeerError(context); }

  const int world_size_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<std::string> open_;
  std::vector<bool> here_;
  // The last finished round. It cannot be replaced before every rank has read it: the next needs all of them.
  std::shared_ptr<const std::vector<std::string>> closed_;
  int arrived_ = 0;
  long long round_ = 0;
  std::optional<PeerError::Context> broken_;
};

class ThreadRendezvous : public Rendezvous {
 public:
  ThreadRendezvous(std::shared_ptr<MeetingPoint> point, int rank, int world_size) : point_(std::move(point)) {
    place_ = Place{rank, world_size, rank, world_size, 0, 1, "threads"};
  }
  const Place& place() const override { return place_; }
  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    return point_->exchange(place_.rank, mine, deadline);
  }

 private:
  const std::shared_ptr<MeetingPoint> point_;
  Place place_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_single_rendezvous() { return std::make_unique<SingleRendezvous>(); }

std::vector<std::unique_ptr<Rendezvous>> make_thread_rendezvous(int world_size) {
  MUSTER_CHECK_LT(0, world_size);
  auto point = std::make_shared<MeetingPoint>(world_size);
  std::vector<std::unique_ptr<Rendezvous>> all;
  for (int rank = 0; rank < world_size; ++rank) all.push_back(std::make_unique<ThreadRendezvous>(point, rank, world_size));
  return all;
}

}  // namespace muster::comm
