#pragma once
// The table that says where each parameter lies in the flat buffers (docs/architecture.md, "Partition"). No tensors here.

#include <cstdint>
#include <string>
#include <vector>

namespace muster::sharding {

struct PartitionOptions {
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;  // small, so that communication starts early in the backward pass
  int64_t element_bytes = 4;             // of the gradient buffer
  int shards = 1;                        // every bucket divides by this
  bool by_unit = false;                  // a bucket is a unit (ParameterSpec::unit), whatever its size
};

// What the partition must know of a parameter.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = false;
  int unit = 0;  // parameters that a forward pass needs together: a block, the embedding, the end
  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
  }
};

// What one shard is of a bucket.
struct ShardRange {
  int64_t begin = 0, end = 0;  // elements of the flat buffer
  int64_t decay_end = 0;       // [begin, decay_end) has weight decay
  int64_t at = 0;              // where it begins in a buffer that holds only this shard of all buckets, in order
  int64_t size() const { return end - begin; }
};

// All parameters in one flat buffer, cut into buckets. Inside a bucket parameters with weight decay come first, so that the
// optimizer makes one call a bucket. Every parameter starts on a 64-byte boundary; gaps hold zeros for ever.
// A value: constant once built.
class Partition {
 public:
  static constexpr int64_t kAlignElements = 16;

  struct Bucket {
    int64_t begin = 0, decay_end = 0, end = 0;  // elements of the flat buffer; [begin, decay_end) has weight decay
    std::vector<int> parameters;                // indices into the parameter list
    int64_t size() const { return end - begin; }
  };

  // order: parameter indices in the order in which their gradients are expected.
  Partition(const std::vector<ParameterSpec>& parameters, const std::vector<int>& order, const PartitionOptions& options);

  int64_t size() const { return size_; }  // elements, gaps included
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t offset(int parameter) const { return offsets_[parameter]; }
  int bucket_of(int parameter) const { return bucket_of_[parameter]; }
  int64_t largest_bucket() const;  // elements

  // Shard `part` of `parts` of every bucket; `parts` divides what PartitionOptions::shards said.
  std::vector<ShardRange> shard(int part, int parts) const;

 private:
  void close_bucket(const std::vector<ParameterSpec>& parameters, std::vector<int> members, int shards);

  int64_t size_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> offsets_;
  std::vector<int> bucket_of_;
};

// Last registered first: the order in which a backward pass reaches them, near enough for the first step.
std::vector<int> reverse_registration_order(int count);

}  // namespace muster::sharding
