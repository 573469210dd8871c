#include "fsdp/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "fsdp/base/error.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

World place(int rank, int size) {
  World world;
  world.rank = rank;
  world.size = size;
  return world;
}

TEST(Mesh, OneAxisOverAllRanks) {
  const Mesh mesh = Mesh::shard(place(2, 4));
  EXPECT_EQ(mesh.size("shard"), 4);
  EXPECT_EQ(mesh.index("shard"), 2);
  EXPECT_EQ(mesh.ranks("shard"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(mesh.describe(), "shard=4");
}

TEST(Mesh, TwoAxesTheLastVariesFastest) {
  const Mesh mesh(place(5, 8), {{"replicate", 2}, {"shard", 4}});
  EXPECT_EQ(mesh.index("replicate"), 1);
  EXPECT_EQ(mesh.index("shard"), 1);
  EXPECT_EQ(mesh.ranks("shard"), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.ranks("replicate"), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.describe(), "replicate=2, shard=4");
}

// Rank r of a 2 x 3 x 4 mesh is coordinate (r / 12, r / 4 % 3, r % 4).
TEST(Mesh, ThreeAxes) {
  for (int rank = 0; rank < 24; ++rank) {
    const Mesh mesh(place(rank, 24), {{"a", 2}, {"b", 3}, {"c", 4}});
    EXPECT_EQ(mesh.index("a"), rank / 12);
    EXPECT_EQ(mesh.index("b"), rank / 4 % 3);
    EXPECT_EQ(mesh.index("c"), rank % 4);
    for (const char* axis : {"a", "b", "c"}) {
      const std::vector<int> ranks = mesh.ranks(axis);
      ASSERT_EQ(static_cast<int>(ranks.size()), mesh.size(axis));
      EXPECT_EQ(ranks[static_cast<size_t>(mesh.index(axis))], rank) << axis;
    }
  }
}

TEST(Mesh, GroupsOfAnAxisPartitionTheWorld) {
  for (const char* axis : {"a", "b", "c"}) {
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < 24; ++rank)
      groups.insert(Mesh(place(rank, 24), {{"a", 2}, {"b", 3}, {"c", 4}}).ranks(axis));
    std::set<int> covered;
    size_t members = 0;
    for (const auto& group : groups) {
      covered.insert(group.begin(), group.end());
      members += group.size();
    }
    EXPECT_EQ(covered.size(), 24U) << axis;
    EXPECT_EQ(members, 24U) << axis;
  }
}

TEST(Mesh, TheAxesOfParallelTrainingHaveAnOrder) {
  const Mesh mesh = Mesh::parallel(place(5, 16), {{"tp", 2}, {"cp", 2}, {"replicate", 2}});
  EXPECT_EQ(mesh.describe(), "replicate=2, shard=2, cp=2, tp=2");
  EXPECT_EQ(mesh.ranks("tp"), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.ranks("cp"), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.ranks("shard"), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.flattened({"shard", "cp"}, "shard").ranks("shard"), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(Mesh::parallel(place(0, 3), {}).describe(), "shard=3");
  EXPECT_EQ(Mesh::parallel(place(0, 8), {{"ep", 2}, {"shard", 2}, {"pp", 2}}).describe(), "pp=2, shard=2, ep=2");
  const auto make = [](int size, std::vector<MeshAxis> axes) { return [=] { Mesh::parallel(place(0, size), axes); }; };
  EXPECT_THAT(make(6, {{"tp", 4}}), ThrowsMessage<Error>(HasSubstr("start 4 or 8 ranks")));
  EXPECT_THAT(make(4, {{"tensor", 2}}), ThrowsMessage<Error>(HasSubstr("got axis 'tensor'")));
  EXPECT_THAT(make(4, {{"tp", 2}, {"tp", 2}}), ThrowsMessage<Error>(HasSubstr("'tp' is named twice")));
  EXPECT_THAT(make(8, {{"tp", 2}, {"shard", 2}}), ThrowsMessage<Error>(HasSubstr("4 places, but the world has 8")));
}

TEST(Mesh, AnAxisItLacksIsThisRankAlone) {
  const Mesh mesh = Mesh::shard(place(3, 4));
  EXPECT_FALSE(mesh.has("tensor"));
  EXPECT_EQ(mesh.size("tensor"), 1);
  EXPECT_EQ(mesh.index("tensor"), 0);
  EXPECT_EQ(mesh.ranks("tensor"), std::vector<int>{3});
}

TEST(Mesh, RefusesWhatIsNoGrid) {
  const auto make = [](int size, std::vector<MeshAxis> axes) { return [=] { Mesh(place(0, size), axes); }; };
  EXPECT_THAT(make(8, {{"shard", 6}}), ThrowsMessage<Error>(HasSubstr("shard=6 has 6 places, but the world has 8")));
  EXPECT_THAT(make(4, {{"shard", 2}, {"shard", 2}}), ThrowsMessage<Error>(HasSubstr("'shard' is named twice")));
  EXPECT_THAT(make(4, {{"replicate", 0}, {"shard", 4}}), ThrowsMessage<Error>(HasSubstr("'replicate': got 0")));
  EXPECT_THAT(make(4, {{"replicate", -1}, {"shard", -4}}), ThrowsMessage<Error>(HasSubstr("got -1")));
  EXPECT_THAT(make(2, {}), ThrowsMessage<Error>(HasSubstr("1 places")));
  EXPECT_NO_THROW(make(1, {})());
}

// Rank r of a 2 x 3 x 4 mesh is coordinate (r / 12, r / 4 % 3, r % 4).
TEST(Mesh, AFlattenedAxisCountsThroughItsAxesTheLastOneFastest) {
  for (int rank = 0; rank < 24; ++rank) {
    const Mesh grid(place(rank, 24), {{"a", 2}, {"b", 3}, {"c", 4}});
    const int a = rank / 12;
    const int b = rank / 4 % 3;
    const int c = rank % 4;
    const Mesh neighbours = grid.flattened({"a", "b"}, "replicate");
    EXPECT_EQ(neighbours.size("replicate"), 6);
    EXPECT_EQ(neighbours.index("replicate"), a * 3 + b);
    EXPECT_EQ(neighbours.index("c"), c);
    EXPECT_EQ(neighbours.describe(), "replicate=6, c=4");
    const Mesh apart = grid.flattened({"c", "a"}, "shard");
    EXPECT_EQ(apart.index("shard"), c * 2 + a);
    EXPECT_EQ(apart.index("b"), b);
    std::vector<int> ranks;
    for (int k = 0; k < 8; ++k) ranks.push_back(k % 2 * 12 + b * 4 + k / 2);
    EXPECT_EQ(apart.ranks("shard"), ranks);
    EXPECT_EQ(apart.describe(), "shard=8 (4 x 1, 2 x 12), b=3 (3 x 4)");
    const Mesh all = apart.flattened({"b", "shard"}, "shard");
    EXPECT_EQ(all.index("shard"), b * 8 + c * 2 + a);
    EXPECT_EQ(all.ranks("shard")[static_cast<size_t>(all.index("shard"))], rank);
  }
}

TEST(Mesh, FlatteningWhatIsNotThereIsRefused) {
  const Mesh mesh(place(0, 8), {{"a", 2}, {"b", 4}});
  EXPECT_THAT([&] { mesh.flattened({"a", "d"}, "shard"); }, ThrowsMessage<Error>(HasSubstr("got axis 'd'")));
  EXPECT_THAT([&] { mesh.flattened({"a", "a"}, "shard"); }, ThrowsMessage<Error>(HasSubstr("'a' twice")));
  EXPECT_THAT([&] { mesh.flattened({"a"}, "b"); }, ThrowsMessage<Error>(HasSubstr("the name 'b'")));
  EXPECT_THAT([&] { mesh.flattened({}, "b"); }, ThrowsMessage<Error>(HasSubstr("got no axis")));
}

}  // namespace
}  // namespace fsdp
