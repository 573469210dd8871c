// Which tensors share a group, and where they lie in it.
#include "fsdp/functional/grouping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fsdp::functional::grouping_test {
namespace {

using Groups = std::vector<std::vector<size_t>>;

int64_t ceil_divide(int64_t count, int64_t divisor) { return (count + divisor - 1) / divisor; }
int64_t round_up(int64_t count, int64_t multiple) { return ceil_divide(count, multiple) * multiple; }

Groups group_floats(const std::vector<int64_t>& numels, int64_t group_bytes) {
  std::vector<ListedTensor> list;
  for (const int64_t numel : numels) list.push_back({numel, 4, 0});
  return group_by_size(list, group_bytes);
}

TEST(Grouping, TensorsJoinUpToTheSizeOfAGroup) {
  EXPECT_EQ(group_floats({4, 4, 4}, 32), (Groups{{0, 1}, {2}}));
  EXPECT_EQ(group_floats({4, 100, 4, 4}, 32), (Groups{{0}, {1}, {2, 3}}));
  EXPECT_EQ(group_floats({0, 100, 0, 1}, 32), (Groups{{0}, {1, 2}, {3}}));
  EXPECT_EQ(group_floats({1, 1, 1}, 1), (Groups{{0}, {1}, {2}}));
  EXPECT_EQ(group_floats({}, 1), Groups{});
}

TEST(Grouping, TheNumberOfGroupsFollowsFromTheSizes) {
  for (const int64_t bytes : {16, 24, 48, 100, 1 << 20}) {
    const int64_t most = std::max<int64_t>(bytes / 24, 1);
    const auto groups = static_cast<int64_t>(group_floats(std::vector<int64_t>(10, 6), bytes).size());
    EXPECT_EQ(groups, ceil_divide(10, most)) << bytes;
  }
}

TEST(Grouping, KindsAreNotMixedAndDoNotSplitEachOther) {
  const std::vector<ListedTensor> list = {{4, 4, 6}, {4, 2, 15}, {4, 4, 6}, {4, 2, 15}, {4, 4, 6}};
  EXPECT_EQ(group_by_size(list, 32), (Groups{{0, 2}, {1, 3}, {4}}));
}

TEST(Grouping, PiecesOfAnExample) {
  const std::vector<int64_t> numels = {5, 0, 1, 4};
  const GroupLayout flat = lay_out_flat(numels, 2, 2);
  EXPECT_EQ(flat.shard_numel, 6);
  EXPECT_EQ(flat.pieces, (std::vector<Piece>{{0, 0, 0, 5}, {2, 0, 5, 1}, {3, 0, 6, 4}}));
  const GroupLayout by_tensor = lay_out_by_tensor(numels, 2, 2);
  EXPECT_EQ(by_tensor.shard_numel, 6);  // 3 + 0 + 1 + 2
  EXPECT_EQ(by_tensor.pieces,
            (std::vector<Piece>{{0, 0, 0, 3}, {2, 0, 3, 1}, {3, 0, 4, 2}, {0, 3, 6, 2}, {3, 2, 10, 2}}));
}

// Every element of every tensor has one place, no two the same, in the order of the buffer.
void expect_whole(const GroupLayout& layout, const std::vector<int64_t>& numels, int64_t shards, int64_t align) {
  EXPECT_EQ(layout.shard_numel % align, 0);
  std::vector<int64_t> covered(numels.size(), 0);
  int64_t end = 0;
  for (const Piece& piece : layout.pieces) {
    EXPECT_GE(piece.buffer_begin, end);
    EXPECT_GT(piece.numel, 0);
    EXPECT_EQ(piece.tensor_begin, covered[piece.member]);
    covered[piece.member] += piece.numel;
    end = piece.buffer_begin + piece.numel;
  }
  EXPECT_LE(end, layout.shard_numel * shards);
  EXPECT_EQ(covered, numels);
}

TEST(Grouping, LayoutsHoldEveryElementOnce) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t shards = 1 + static_cast<int64_t>(random() % 9);
    const int64_t align = int64_t{1} << random() % 4;
    std::vector<int64_t> numels(random() % 12);
    for (int64_t& numel : numels) numel = static_cast<int64_t>(random() % 3 == 0 ? random() % 4 : random() % 200);
    SCOPED_TRACE("trial " + std::to_string(trial));
    int64_t total = 0;
    int64_t row = 0;
    for (const int64_t numel : numels) total += numel;
    for (const int64_t numel : numels) row += ceil_divide(numel, shards);
    const GroupLayout flat = lay_out_flat(numels, shards, align);
    expect_whole(flat, numels, shards, align);
    EXPECT_EQ(flat.shard_numel, round_up(ceil_divide(total, shards), align));
    const GroupLayout by_tensor = lay_out_by_tensor(numels, shards, align);
    expect_whole(by_tensor, numels, shards, align);
    EXPECT_EQ(by_tensor.shard_numel, round_up(row, align));
  }
}

}  // namespace
}  // namespace fsdp::functional::grouping_test
