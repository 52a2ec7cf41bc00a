#include "sharding/mesh/mesh.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "comm/base/error.h"

namespace muster::sharding {
namespace {

constexpr Axis kAll[] = {Axis::kPipeline, Axis::kReplica, Axis::kShard, Axis::kTensor};

TEST(Mesh, TensorIsInnermostAndPipelineOutermost) {
  const Mesh mesh({2, 2, 2, 2}, 13);  // 1101
  EXPECT_EQ(mesh.coordinate(Axis::kPipeline), 1);
  EXPECT_EQ(mesh.coordinate(Axis::kReplica), 1);
  EXPECT_EQ(mesh.coordinate(Axis::kShard), 0);
  EXPECT_EQ(mesh.coordinate(Axis::kTensor), 1);
  EXPECT_EQ(mesh.group({Axis::kTensor}), (std::vector<int>{12, 13}));
  EXPECT_EQ(mesh.group({Axis::kPipeline}), (std::vector<int>{5, 13}));
  EXPECT_EQ(mesh.group({Axis::kReplica, Axis::kShard}), (std::vector<int>{9, 11, 13, 15}));
  EXPECT_EQ(mesh.data_parallel_rank(), 2);
  EXPECT_EQ(mesh.to_text(), "pp 1/2, dp 2/4 (shard 0/2, replica 1/2), tp 1/2");
}

TEST(Mesh, GroupsOfAnAxisAreDisjointAndCoverTheWorld) {
  const MeshSizes sizes{2, 3, 2, 4};
  for (const Axis axis : kAll) {
    std::vector<int> seen(sizes.world());
    for (int rank = 0; rank < sizes.world(); ++rank) {
      const Mesh mesh(sizes, rank);
      const auto group = mesh.group({axis});
      ASSERT_EQ(group.size(), static_cast<size_t>(mesh.size(axis)));
      EXPECT_EQ(group[mesh.coordinate(axis)], rank);
      for (const int member : group) EXPECT_EQ(Mesh(sizes, member).group({axis}), group);
      ++seen[group[0]];
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), sizes.world() - sizes.world() / Mesh(sizes, 0).size(axis));
  }
}

std::string refusal(int world, int pipeline, int tensor, int shard) {
  try {
    cut_ranks(world, pipeline, tensor, shard);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(CutRanks, DataParallelIsWhatIsLeft) {
  const MeshSizes sizes = cut_ranks(24, 2, 3, 2);
  EXPECT_EQ(sizes.replica, 2);
  EXPECT_EQ(sizes.shard, 2);
  EXPECT_EQ(cut_ranks(24, 2, 3, 0).shard, 4);
  EXPECT_NE(refusal(24, 5, 1, 0).find("found 24, wanted a multiple of"), std::string::npos);
  EXPECT_NE(refusal(8, 1, 1, 3).find("shard_size: found 3, wanted a divisor of the 8"), std::string::npos);
}

}  // namespace
}  // namespace muster::sharding
