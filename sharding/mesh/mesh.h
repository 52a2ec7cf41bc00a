#pragma once
// Where a rank stands among the axes of parallelism. Pure.

#include <string>
#include <vector>

namespace muster::sharding {

// Axes from the outermost to the innermost: ranks of one tensor-parallel group are neighbours (the fastest links), pipeline stages
// are farthest apart. The data-parallel axis is two: ranks that hold the same shard (replica, outer) and ranks that cut each bucket
// among them (shard, inner: neighbours, within a node with hybrid sharding). Context parallelism would stand between dp and tp.
enum class Axis { kPipeline, kReplica, kShard, kTensor };

struct MeshSizes {
  int pipeline = 1, replica = 1, shard = 1, tensor = 1;
  int world() const { return pipeline * replica * shard * tensor; }
};

// A value.
class Mesh {
 public:
  // rank in [0, sizes.world()).
  Mesh(MeshSizes sizes, int rank);

  const MeshSizes& sizes() const { return sizes_; }
  int size(Axis axis) const;
  int coordinate(Axis axis) const;
  // Ranks that differ from this one in these axes alone, ascending.
  std::vector<int> group(const std::vector<Axis>& axes) const;

  int data_parallel_size() const { return sizes_.replica * sizes_.shard; }
  int data_parallel_rank() const { return coordinate(Axis::kReplica) * sizes_.shard + coordinate(Axis::kShard); }

  // "pp 1/2, dp 0/4 (shard 0/2, replica 0/2), tp 0/1".
  std::string to_text() const;

 private:
  std::vector<int> coordinates_of(int rank) const;  // by axis

  MeshSizes sizes_;
  int rank_;
};

// Cuts `world` ranks: pipeline and tensor as given, the rest data parallel, of which `shard` (0: all) shard together.
// InputError naming the keys where it does not divide.
MeshSizes cut_ranks(int world, int pipeline, int tensor, int shard);

}  // namespace muster::sharding
