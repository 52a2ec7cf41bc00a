#include "sharding/plan/partition.h"

#include <algorithm>
#include <numeric>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

Partition::Partition(const std::vector<ParameterSpec>& parameters, const std::vector<int>& order, const PartitionOptions& options)
    : offsets_(parameters.size(), -1), bucket_of_(parameters.size(), -1) {
  MUSTER_CHECK_EQ(order.size(), parameters.size());
  std::vector<int> members;
  int64_t bytes = 0;
  const auto full = [&](int next) {
    if (options.by_unit) return parameters[next].unit != parameters[members.back()].unit;
    return bytes >= (buckets_.empty() ? options.first_bucket_bytes : options.bucket_bytes);
  };
  for (const int p : order) {
    if (!members.empty() && full(p)) {
      close_bucket(parameters, std::move(members), options.shards);
      members.clear();
      bytes = 0;
    }
    members.push_back(p);
    bytes += parameters[p].numel() * options.element_bytes;
  }
  if (!members.empty()) close_bucket(parameters, std::move(members), options.shards);
}

int64_t Partition::largest_bucket() const {
  int64_t largest = 0;
  for (const Bucket& b : buckets_) largest = std::max(largest, b.size());
  return largest;
}

std::vector<ShardRange> Partition::shard(int part, int parts) const {
  std::vector<ShardRange> ranges;
  int64_t at = 0;
  for (const Bucket& bucket : buckets_) {
    MUSTER_CHECK_EQ(bucket.size() % (parts * kAlignElements), 0);
    ShardRange range;
    range.begin = bucket.begin + bucket.size() / parts * part;
    range.end = range.begin + bucket.size() / parts;
    range.decay_end = std::clamp(bucket.decay_end, range.begin, range.end);
    range.at = at;
    at += range.size();
    ranges.push_back(range);
  }
  return ranges;
}

void Partition::close_bucket(const std::vector<ParameterSpec>& parameters, std::vector<int> members, int shards) {
  std::stable_partition(members.begin(), members.end(), [&](int p) { return parameters[p].decay; });
  Bucket bucket;
  bucket.begin = bucket.decay_end = size_;
  for (const int p : members) {
    MUSTER_CHECK_EQ(offsets_[p], -1);
    offsets_[p] = size_;
    bucket_of_[p] = static_cast<int>(buckets_.size());
    size_ += round_up(parameters[p].numel(), kAlignElements);
    if (parameters[p].decay) bucket.decay_end = size_;
  }
  // Never empty: a collective moves at least something.
  size_ = bucket.begin + round_up(std::max<int64_t>(size_ - bucket.begin, 1), kAlignElements * shards);
  bucket.end = size_;
  bucket.parameters = std::move(members);
  buckets_.push_back(std::move(bucket));
}

std::vector<int> reverse_registration_order(int count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace muster::sharding
