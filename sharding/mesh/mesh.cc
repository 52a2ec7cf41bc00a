#include "sharding/mesh/mesh.h"

#include <algorithm>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

constexpr Axis kAxes[] = {Axis::kPipeline, Axis::kReplica, Axis::kShard, Axis::kTensor};  // outermost first

}  // namespace

Mesh::Mesh(MeshSizes sizes, int rank) : sizes_(sizes), rank_(rank) {
  for (const Axis axis : kAxes) MUSTER_CHECK_LT(0, size(axis));
  MUSTER_CHECK(0 <= rank && rank < sizes.world());
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::kPipeline: return sizes_.pipeline;
    case Axis::kReplica: return sizes_.replica;
    case Axis::kShard: return sizes_.shard;
    case Axis::kTensor: return sizes_.tensor;
  }
  return 1;
}

std::vector<int> Mesh::coordinates_of(int rank) const {
  std::vector<int> coordinates(std::size(kAxes));
  for (size_t i = std::size(kAxes); i-- > 0;) {
    coordinates[i] = rank % size(kAxes[i]);
    rank /= size(kAxes[i]);
  }
  return coordinates;
}

int Mesh::coordinate(Axis axis) const { return coordinates_of(rank_)[static_cast<size_t>(axis)]; }

std::vector<int> Mesh::group(const std::vector<Axis>& axes) const {
  const auto mine = coordinates_of(rank_);
  std::vector<int> members;
  for (int rank = 0; rank < sizes_.world(); ++rank) {
    const auto theirs = coordinates_of(rank);
    const bool same_elsewhere = std::all_of(std::begin(kAxes), std::end(kAxes), [&](Axis axis) {
      const auto i = static_cast<size_t>(axis);
      return mine[i] == theirs[i] || std::find(axes.begin(), axes.end(), axis) != axes.end();
    });
    if (same_elsewhere) members.push_back(rank);
  }
  return members;
}

std::string Mesh::to_text() const {
  const auto place = [&](Axis axis) { return fmt::format("{}/{}", coordinate(axis), size(axis)); };
  return fmt::format("pp {}, dp {}/{} (shard {}, replica {}), tp {}", place(Axis::kPipeline), data_parallel_rank(), data_parallel_size(),
                     place(Axis::kShard), place(Axis::kReplica), place(Axis::kTensor));
}

MeshSizes cut_ranks(int world, int pipeline, int tensor, int shard) {
  if (world % (pipeline * tensor) != 0) {
    refuse("ranks: found {}, wanted a multiple of pipeline_model_parallel_size ({}) x tensor_model_parallel_size ({}) = {}", world, pipeline,
           tensor, pipeline * tensor);
  }
  const int data = world / (pipeline * tensor);
  if (shard == 0) shard = data;
  if (data % shard != 0) refuse("zero_optimization.shard_size: found {}, wanted a divisor of the {} data-parallel ranks", shard, data);
  return {pipeline, data / shard, shard, tensor};
}

}  // namespace muster::sharding
