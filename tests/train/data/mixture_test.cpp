#include "train/data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"
#include "train/data/data_order.h"

namespace fsdp::train {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_mixture(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << text;
    return error.what();
  }
  return "no error";
}

TEST(Mixture, PartsAndWeights) {
  const auto parts = parse_mixture("data/web:0.7,/books:3,code");
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].path, "data/web");
  EXPECT_EQ(parts[0].weight, 0.7);
  EXPECT_EQ(parts[1].path, "/books");
  EXPECT_EQ(parts[1].weight, 3);
  EXPECT_EQ(parts[2].path, "code");
  EXPECT_EQ(parts[2].weight, 1);
  EXPECT_EQ(parse_mixture("one folder").size(), 1u);
}

TEST(Mixture, AFolderThatExistsIsOneFolder) {
  const io::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a:0.5,b:1");
  const auto parts = parse_mixture(folder / "a:0.5,b:1");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].path, folder / "a:0.5,b:1");
  std::filesystem::create_directory(folder / "c:2");
  EXPECT_EQ(parse_mixture((folder / "c:2").native() + ":0.5,d")[0].path, folder / "c:2");
}

TEST(Mixture, MistakesAreNamed) {
  for (const char* text : {"a:0,b:1", "a:-1,b:1", "a:x,b", "a:nan,b", "a:inf,b", "a:,b", "a:1e999,b"}) {
    EXPECT_NE(refusal(text).find("is no positive number"), std::string::npos) << text << refusal(text);
  }
  for (const char* text : {"a,,b", ",a", "a,", ":0.5,b"}) {
    EXPECT_NE(refusal(text).find("has no folder"), std::string::npos) << text << refusal(text);
  }
  EXPECT_NE(refusal("a:1,b:1,a:2").find("a occurs twice"), std::string::npos);
}

TEST(MixtureOrder, SharesAreRightInEveryBlock) {
  const MixtureOrder order(3, {0.7, 0.2, 0.1, 1e-9});
  int64_t sum = 0;
  for (size_t source = 0; source < 4; ++source) sum += order.share(source);
  EXPECT_EQ(sum, MixtureOrder::kBlock);
  EXPECT_NEAR(static_cast<double>(order.share(0)), 0.7 * MixtureOrder::kBlock, 2);
  EXPECT_NEAR(static_cast<double>(order.share(1)), 0.2 * MixtureOrder::kBlock, 2);
  EXPECT_EQ(order.share(3), 1);
  // Also short pieces of the row: a hundred thousandth is off by the chance of drawing without putting back.
  std::vector<int64_t> counts(4);
  for (int64_t i = 1000; i < 3000; ++i) ++counts[order.at(i).source];
  EXPECT_NEAR(static_cast<double>(counts[0]), 1400, 5 * std::sqrt(2000 * 0.7 * 0.3));
  EXPECT_NEAR(static_cast<double>(counts[2]), 200, 5 * std::sqrt(2000 * 0.1 * 0.9));
}

// Each number of each source occurs exactly once, and cursors follow from the place.
TEST(MixtureOrder, EveryNumberOnceAndCursorsFollow) {
  const MixtureOrder order(5, {5, 3, 1});
  std::vector<std::vector<bool>> seen(3, std::vector<bool>(2 * MixtureOrder::kBlock));
  std::vector<int64_t> counts(3);
  for (int64_t i = 0; i < 2 * MixtureOrder::kBlock; ++i) {
    if (i % 40011 == 0) {
      EXPECT_EQ(order.consumed(i), counts) << i;
    }
    const auto [source, number] = order.at(i);
    ASSERT_FALSE(seen[source].at(static_cast<size_t>(number))) << i;
    seen[source][static_cast<size_t>(number)] = true;
    ++counts[source];
  }
  for (size_t source = 0; source < 3; ++source) {
    const auto end = seen[source].begin() + 2 * order.share(source);
    EXPECT_EQ(std::count(seen[source].begin(), end, true), 2 * order.share(source));  // none left out
    EXPECT_EQ(std::count(end, seen[source].end(), true), 0);
  }
}

TEST(MixtureOrder, SeedsDifferAndFarPlacesAreAsCheap) {
  const MixtureOrder a(1, {1, 1});
  const MixtureOrder b(2, {1, 1});
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) equal += a.at(i).source == b.at(i).source ? 1 : 0;
  EXPECT_NEAR(equal, 500, 100);
  const int64_t far = int64_t{1} << 60;
  const auto place = a.at(far);
  EXPECT_NEAR(static_cast<double>(place.number), static_cast<double>(far) / 2, 65536);
}

TEST(MixtureOrder, OneSourceIsTheRowItself) {
  const MixtureOrder order(7, {0.3});
  EXPECT_EQ(order.at(123456789).number, 123456789);
  EXPECT_EQ(order.consumed(77), std::vector<int64_t>{77});
}

TEST(DataOrder, OneSourceIsReadAsEver) {
  const DataOrder one(9, 1000);
  const DataOrder same(9, {1000}, {0.25});
  EXPECT_EQ(one.sequences(990, 20), same.sequences(990, 20));
  EXPECT_EQ(one.sequences(0, 4), (std::vector<int64_t>{475, 431, 725, 623}));
}

// Small sources go through epochs of their own; within each, no sequence is missing or twice.
TEST(DataOrder, EpochsOfASourceAreWhole) {
  const std::vector<int64_t> sizes = {40, 1000};
  const DataOrder order(11, sizes, {0.5, 0.5});
  std::vector<int64_t> taken(1040);
  const int64_t rounds = 4 * MixtureOrder::kBlock;
  for (const int64_t index : order.sequences(0, rounds)) ++taken.at(static_cast<size_t>(index));
  for (size_t index = 0; index < taken.size(); ++index) {
    const int64_t size = index < 40 ? sizes[0] : sizes[1];
    const int64_t epochs = rounds / 2 / size;
    EXPECT_GE(taken[index], epochs) << index;
    EXPECT_LE(taken[index], epochs + 1) << index;
  }
}

TEST(DataOrder, PiecesOfARowAreTheRow) {
  const DataOrder order(13, {300, 20, 7}, {1, 2, 3});
  const auto whole = order.sequences(65000, 2000);
  std::vector<int64_t> pieces;
  for (int64_t i = 0; i < 2000; i += 8) {
    const auto piece = order.sequences(65000 + i, 8);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
}

}  // namespace
}  // namespace fsdp::train
