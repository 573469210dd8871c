#include "fsdp/layout/planner.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>

namespace fsdp::layout {

void showValue(const TensorSpec& tensor, std::ostream& out) {
  out << "{numel " << tensor.numel << ", granule " << tensor.granule << "}";
}

namespace {

using Tensors = std::vector<TensorSpec>;

// Whether a tensor may start at `start`: straight from the definition, boundary by boundary.
bool is_legal(const TensorSpec& tensor, int64_t start, int64_t shard, int64_t num_shards) {
  if (start + tensor.numel > shard * num_shards) return false;
  for (int64_t boundary = shard; boundary < shard * num_shards; boundary += shard) {
    const bool inside = boundary > start && boundary < start + tensor.numel;
    if (inside && (boundary - start) % tensor.granule != 0) return false;
  }
  return true;
}

// Tries every start of every tensor.
bool exists(const Tensors& tensors, size_t index, int64_t cursor, int64_t shard, int64_t num_shards, int64_t align,
            std::set<std::pair<size_t, int64_t>>* dead) {
  if (index == tensors.size()) return true;
  if (dead->count({index, cursor}) != 0) return false;
  for (int64_t start = (cursor + align - 1) / align * align; start <= shard * num_shards; start += align) {
    if (!is_legal(tensors[index], start, shard, num_shards)) continue;
    const int64_t end = start + tensors[index].numel;
    if (exists(tensors, index + 1, end, shard, num_shards, align, dead)) return true;
  }
  dead->insert({index, cursor});
  return false;
}

int64_t brute_force_shard(const Tensors& tensors, int64_t num_shards, int64_t align) {
  for (int64_t shard = 0;; shard += align) {
    std::set<std::pair<size_t, int64_t>> dead;
    if (shard == 0 && std::all_of(tensors.begin(), tensors.end(), [](auto& t) { return t.numel == 0; })) return 0;
    if (shard > 0 && exists(tensors, 0, 0, shard, num_shards, align, &dead)) return shard;
  }
}

// Every rule a layout promises, as the first one that is broken.
std::optional<std::string> broken_rule(const FlatLayout& layout, const Tensors& tensors, int64_t align) {
  int64_t end = 0;
  if (layout.shard_numel % align != 0) return "shard size is not aligned";
  if (layout.offsets.size() != tensors.size() || layout.numels.size() != tensors.size())
    return "wrong number of tensors";
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "tensor " + std::to_string(i);
    if (layout.numels[i] != tensors[i].numel) return name + " has another size";
    if (layout.offsets[i] % align != 0) return name + " is not aligned";
    if (layout.offsets[i] < end) return name + " overlaps";
    if (layout.shard_numel > 0 && !is_legal(tensors[i], layout.offsets[i], layout.shard_numel, layout.num_shards)) {
      return name + " is cut inside a granule or leaves the buffer";
    }
    end = layout.offsets[i] + tensors[i].numel;
  }
  return std::nullopt;
}

// The slices of all shards, in order, are the tensor.
std::optional<std::string> broken_slices(const FlatLayout& layout) {
  for (size_t tensor = 0; tensor < layout.numels.size(); ++tensor) {
    int64_t next = 0;
    for (int64_t shard = 0; shard < layout.num_shards; ++shard) {
      const Range slice = layout.slice_of(shard, tensor);
      if (slice.empty()) {
        if (slice != Range{}) return "an empty slice is not {0, 0}";
        continue;
      }
      if (slice.begin != next) return "slices do not join";
      const Range owned = layout.owned(shard);
      if (layout.offsets[tensor] + slice.begin < owned.begin || layout.offsets[tensor] + slice.end > owned.end) {
        return "a slice leaves its shard";
      }
      next = slice.end;
    }
    if (next != layout.numels[tensor]) return "slices do not cover the tensor";
  }
  return std::nullopt;
}

rc::Gen<Tensors> some_tensors(size_t most, int64_t largest) {
  const auto tensor = rc::gen::map(rc::gen::tuple(rc::gen::inRange<int64_t>(0, largest + 1),
                                                  rc::gen::element<int64_t>(1, 1, 2, 3, 4, 6, 8, 16, 1000)),
                                   [](const std::tuple<int64_t, int64_t>& t) {
                                     return TensorSpec{std::get<0>(t), std::get<1>(t)};
                                   });
  return rc::gen::mapcat(rc::gen::inRange<size_t>(0, most + 1),
                         [tensor](size_t count) { return rc::gen::container<Tensors>(count, tensor); });
}

RC_GTEST_PROP(PlannerProperty, EqualsBruteForce, ()) {
  const Tensors tensors = *some_tensors(5, 40);
  const int64_t num_shards = *rc::gen::inRange<int64_t>(1, 7);
  const int64_t align = *rc::gen::element<int64_t>(1, 2, 3, 4, 8);
  const FlatLayout layout = plan(tensors, num_shards, align);
  RC_ASSERT(broken_rule(layout, tensors, align) == std::nullopt);
  RC_ASSERT(layout.shard_numel == brute_force_shard(tensors, num_shards, align));
}

RC_GTEST_PROP(PlannerProperty, LargerLayoutsAreLegal, ()) {
  const Tensors tensors = *some_tensors(30, 5000);
  const int64_t num_shards = *rc::gen::inRange<int64_t>(1, 70);
  const int64_t align = *rc::gen::element<int64_t>(1, 4, 8, 64);
  const FlatLayout layout = plan(tensors, num_shards, align);
  RC_ASSERT(broken_rule(layout, tensors, align) == std::nullopt);
  RC_ASSERT(broken_slices(layout) == std::nullopt);
  RC_ASSERT(layout.padding() >= 0);
}

TEST(Planner, MatchesBruteForceOnManySmallCases) {
  uint64_t state = 20240607;  // fixed seed, printed by a failure through the trace below
  const auto random = [&state](int64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(below));
  };
  const int64_t granules[] = {1, 2, 3, 4, 5, 6, 7, 12, 16, 100};
  for (int instance = 0; instance < 1500; ++instance) {
    SCOPED_TRACE("seed 20240607, instance " + std::to_string(instance));
    Tensors tensors;
    const int64_t count = 1 + random(5);
    for (int64_t i = 0; i < count; ++i) tensors.push_back({random(36), granules[random(10)]});
    const int64_t num_shards = 1 + random(6);
    const int64_t align = 1 + random(4);
    const FlatLayout layout = plan(tensors, num_shards, align);
    ASSERT_EQ(broken_rule(layout, tensors, align), std::nullopt);
    ASSERT_EQ(broken_slices(layout), std::nullopt);
    ASSERT_EQ(layout.shard_numel, brute_force_shard(tensors, num_shards, align));
  }
}

TEST(Planner, ElementGranulesNeedNoPaddingButAlignment) {
  const FlatLayout layout = plan(Tensors{{8}, {16}, {24}}, 3, 8);
  EXPECT_EQ(layout.shard_numel, 16);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 8, 24}));
  EXPECT_EQ(layout.padding(), 0);
  EXPECT_EQ(layout.padding_percent(), 0.0);
  EXPECT_EQ(layout.slice_of(0, 1), (Range{0, 8}));
  EXPECT_EQ(layout.slice_of(1, 1), (Range{8, 16}));
  EXPECT_EQ(layout.slice_of(2, 1), (Range{}));
  EXPECT_EQ(layout.owned(2), (Range{32, 48}));
}

TEST(Planner, StartsAreAligned) {
  const FlatLayout layout = plan(Tensors{{3}, {5}, {9}}, 2, 4);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 4, 12}));
  EXPECT_EQ(layout.shard_numel, 12);
  EXPECT_EQ(layout.padding(), 24 - 17);
}

TEST(Planner, NoTensors) {
  const FlatLayout layout = plan({}, 4, 8);
  EXPECT_EQ(layout.shard_numel, 0);
  EXPECT_EQ(layout.total_numel(), 0);
  EXPECT_EQ(layout.padding_percent(), 0.0);
  EXPECT_EQ(layout.owned(3), (Range{}));
}

TEST(Planner, EmptyTensorsTakeNoRoom) {
  const FlatLayout layout = plan(Tensors{{0, 7}, {5, 1}, {0, 1}}, 2, 1);
  EXPECT_EQ(layout.shard_numel, 3);
  EXPECT_EQ(layout.slice_of(0, 0), (Range{}));
  EXPECT_EQ(layout.offsets[2], 5);
  EXPECT_EQ(plan(Tensors{{0}, {0}}, 3, 8).shard_numel, 0);
}

TEST(Planner, MoreShardsThanElements) {
  const FlatLayout layout = plan(Tensors{{3}}, 8, 1);
  EXPECT_EQ(layout.shard_numel, 1);
  EXPECT_EQ(layout.slice_of(2, 0), (Range{2, 3}));
  for (int64_t shard = 3; shard < 8; ++shard) EXPECT_TRUE(layout.slice_of(shard, 0).empty());
}

TEST(Planner, WholeTensorGranuleIsNeverCut) {
  const Tensors tensors = {{10, 10}, {10, 10}, {10, 10}};
  const FlatLayout layout = plan(tensors, 2, 1);
  EXPECT_EQ(layout.shard_numel, 20);
  EXPECT_EQ(broken_rule(layout, tensors, 1), std::nullopt);
}

TEST(Planner, FeasibilityIsNotMonotone) {
  // 16 elements in rows of 4 over 4 shards: 4 works and 5 would not; the scan starts low and stops at the first hit.
  EXPECT_EQ(plan(Tensors{{16, 4}}, 4, 1).shard_numel, 4);
  // Rows of 4 over 3 shards: two inner boundaries, so the shard must be a multiple of 4.
  EXPECT_EQ(plan(Tensors{{20, 4}}, 3, 1).shard_numel, 8);
}

TEST(Planner, GranuleOf) {
  const std::vector<int64_t> matrix = {6, 4, 2};
  EXPECT_EQ(granule_of(Granularity::kElement, matrix, 0), 1);
  EXPECT_EQ(granule_of(Granularity::kRow, matrix, 0), 8);
  EXPECT_EQ(granule_of(Granularity::kBlock, matrix, 32), 32);
  EXPECT_EQ(granule_of(Granularity::kTensor, matrix, 0), 48);
  EXPECT_EQ(granule_of(Granularity::kRow, std::vector<int64_t>{7}, 0), 1);
  EXPECT_EQ(granule_of(Granularity::kRow, {}, 0), 1);
  EXPECT_EQ(granule_of(Granularity::kTensor, {}, 0), 1);
  EXPECT_EQ(granule_of(Granularity::kTensor, std::vector<int64_t>{3, 0}, 0), 1);
  EXPECT_THROW(granule_of(Granularity::kBlock, matrix, 0), std::invalid_argument);
  EXPECT_THROW(granule_of(Granularity::kRow, std::vector<int64_t>{2, -1}, 0), std::invalid_argument);
}

std::string message_of(const Tensors& tensors, int64_t num_shards, int64_t align) {
  try {
    plan(tensors, num_shards, align);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Planner, BadArgumentsAreNamed) {
  EXPECT_NE(message_of({{1}}, 0, 1).find("num_shards"), std::string::npos);
  EXPECT_NE(message_of({{1}}, 1, 0).find("align_elements"), std::string::npos);
  EXPECT_NE(message_of({{1}, {-3}}, 1, 1).find("tensors[1].numel: got -3"), std::string::npos);
  EXPECT_NE(message_of({{1, 0}}, 1, 1).find("tensors[0].granule: got 0"), std::string::npos);
  EXPECT_NE(message_of({{INT64_MAX}, {INT64_MAX}}, 2, 1).find("numel of all tensors"), std::string::npos);
  EXPECT_NE(message_of({{4}}, INT64_MAX, 8).find("num_shards"), std::string::npos);
  const FlatLayout layout = plan(Tensors{{4}}, 2, 1);
  EXPECT_THROW(layout.owned(2), std::invalid_argument);
  EXPECT_THROW(layout.owned(-1), std::invalid_argument);
  EXPECT_THROW(layout.slice_of(0, 1), std::invalid_argument);
}

TEST(Planner, DigestIsStableAndTellsLayoutsApart) {
  const FlatLayout layout = plan(Tensors{{8}, {16, 4}}, 2, 8);
  EXPECT_EQ(digest(layout), digest(plan(Tensors{{8}, {16, 4}}, 2, 8)));
  EXPECT_EQ(digest(layout), 16128641969554186501u);
  std::set<uint64_t> digests = {digest(layout)};
  digests.insert(digest(plan(Tensors{{16}, {8}}, 2, 8)));
  digests.insert(digest(plan(Tensors{{24}}, 2, 8)));
  digests.insert(digest(plan(Tensors{{8}, {16}}, 3, 8)));
  digests.insert(digest(plan({}, 3, 8)));
  EXPECT_EQ(digests.size(), 5u);
}

// One decoder layer: q, k, v, o, gate, up, down (rows = first dim) and two norms.
Tensors decoder_layer(int64_t hidden, int64_t kv, int64_t ffn, int64_t rows) {
  const auto matrix = [rows](int64_t out, int64_t in) { return TensorSpec{out * in, rows == 0 ? 1 : rows * in}; };
  return {matrix(hidden, hidden), matrix(kv, hidden),  matrix(kv, hidden), matrix(hidden, hidden), matrix(ffn, hidden),
          matrix(ffn, hidden),    matrix(hidden, ffn), TensorSpec{hidden}, TensorSpec{hidden}};
}

TEST(Planner, PaddingOfKnownLayers) {  // the table of the design notes, computed independently
  const struct {
    Tensors tensors;
    int64_t shards;
    double percent;
  } cases[] = {
      {decoder_layer(2048, 512, 11008, 1), 8, 0.10},     {decoder_layer(2048, 512, 11008, 1), 64, 1.0},
      {decoder_layer(2048, 512, 11008, 1), 1024, 15.4},  {decoder_layer(4096, 1024, 14336, 1), 64, 0.12},
      {decoder_layer(4096, 1024, 14336, 1), 1024, 7.7},  {decoder_layer(8192, 1024, 28672, 1), 8, 0.04},
      {decoder_layer(8192, 1024, 28672, 128), 256, 120}, {decoder_layer(8192, 1024, 28672, 128), 1024, 778},
  };
  for (const auto& c : cases) {
    const FlatLayout layout = plan(c.tensors, c.shards, 8);
    EXPECT_EQ(broken_rule(layout, c.tensors, 8), std::nullopt);
    EXPECT_NEAR(layout.padding_percent(), c.percent, 0.005 + 0.06 * c.percent) << c.shards << " shards";
  }
}

TEST(Planner, StaysFast) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t rows : {0, 1, 16, 128}) {
    for (int64_t shards : {1, 2, 3, 8, 64, 1000, 1024}) {
      plan(decoder_layer(2048, 512, 11008, rows), shards, 8);
      plan(decoder_layer(8192, 1024, 28672, rows), shards, 8);
    }
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(spent.count() * 1000));
  EXPECT_LT(spent.count(), 10.0);
}

TEST(Planner, CoarsenedShardsAreRunsOfFineOnes) {
  const std::vector<TensorSpec> tensors{{37, 1}, {12, 4}, {5, 5}, {64, 8}};
  const FlatLayout fine = plan(tensors, 6, 4);
  const FlatLayout coarse = fine.coarsened(3);
  EXPECT_EQ(coarse.num_shards, 2);
  EXPECT_EQ(coarse.total_numel(), fine.total_numel());
  EXPECT_EQ(coarse.offsets, fine.offsets);
  for (int64_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(coarse.owned(shard).begin, fine.owned(3 * shard).begin);
    EXPECT_EQ(coarse.owned(shard).end, fine.owned(3 * shard + 2).end);
  }
  EXPECT_THROW(fine.coarsened(4), std::invalid_argument);
  EXPECT_THROW(fine.coarsened(0), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::layout
