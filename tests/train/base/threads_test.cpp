#include "train/base/threads.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(ShareOfCores, DealsOutWhatAllMayUse) {
  const Cores eight = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<Cores> two(2, eight), three(3, eight);
  EXPECT_EQ(share_of_cores(two, 0), (Cores{0, 1, 2, 3}));
  EXPECT_EQ(share_of_cores(two, 1), (Cores{4, 5, 6, 7}));
  EXPECT_EQ(share_of_cores(three, 0), (Cores{0, 1}));
  EXPECT_EQ(share_of_cores(three, 1), (Cores{2, 3, 4}));
  EXPECT_EQ(share_of_cores(three, 2), (Cores{5, 6, 7}));
  EXPECT_EQ(share_of_cores({eight}, 0), eight);
}

TEST(ShareOfCores, IsEverythingWhereRanksOutnumberCores) {
  const std::vector<Cores> four(4, Cores{3, 9});
  for (size_t place = 0; place < 4; ++place) EXPECT_EQ(share_of_cores(four, place), (Cores{3, 9}));
}

TEST(ShareOfCores, ObeysALauncherThatBoundRanks) {
  const std::vector<Cores> bound = {{0, 1}, {2, 3}, {4, 5, 6}};
  for (size_t place = 0; place < 3; ++place) EXPECT_EQ(share_of_cores(bound, place), bound[place]);
  // Two pairs of ranks, each pair with a socket of its own.
  const std::vector<Cores> sockets = {{0, 1}, {0, 1}, {8, 9}, {8, 9}};
  EXPECT_EQ(share_of_cores(sockets, 1), (Cores{1}));
  EXPECT_EQ(share_of_cores(sockets, 2), (Cores{8}));
  // A plan of its own.
  EXPECT_EQ(share_of_cores({{0, 1, 2}, {2, 3}}, 1), (Cores{2, 3}));
}

TEST(AvailableCores, AreThoseOfThisThread) { EXPECT_GE(available_cores().size(), 1u); }

}  // namespace
}  // namespace fsdp::train
