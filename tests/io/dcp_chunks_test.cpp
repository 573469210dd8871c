#include "io/dcp/dcp_chunks.h"

#include "io/base/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace fsdp::io {
namespace {

DcpChunk chunk(std::vector<int64_t> offsets, std::vector<int64_t> sizes) {
  return {.offsets = std::move(offsets), .sizes = std::move(sizes)};
}

DcpTensor tensor(std::vector<int64_t> shape, std::vector<DcpChunk> chunks) {
  return {.name = "t", .shape = std::move(shape), .type = "float32", .dtype = DType::F32, .chunks = std::move(chunks)};
}

std::string problem(const DcpTensor& tensor) { return ChunkChecker().problem(tensor); }

TEST(DcpChunks, Numel) {
  EXPECT_EQ(checked_numel({}), 1);
  EXPECT_EQ(checked_numel({2, 3}), 6);
  EXPECT_EQ(checked_numel({2, 0}), 0);
  EXPECT_EQ(checked_numel({-1}), std::nullopt);
  EXPECT_EQ(checked_numel({int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(checked_numel({int64_t{1} << 32, int64_t{1} << 31, 0}), std::nullopt);
}

TEST(DcpChunks, CheckerAcceptsWhatCovers) {
  EXPECT_EQ(problem(tensor({}, {chunk({}, {})})), "");
  EXPECT_EQ(problem(tensor({0, 3}, {})), "");
  EXPECT_EQ(problem(tensor({4, 3}, {chunk({0, 0}, {4, 3})})), "");
  EXPECT_EQ(problem(tensor({4, 3}, {chunk({2, 1}, {2, 2}), chunk({0, 0}, {2, 3}), chunk({2, 0}, {2, 1})})), "");
  EXPECT_EQ(problem(tensor(
                {2, 2}, {chunk({0, 0}, {1, 1}), chunk({1, 1}, {1, 1}), chunk({0, 1}, {1, 1}), chunk({1, 0}, {1, 1})})),
            "");
}

TEST(DcpChunks, CheckerNamesWhatIsWrong) {
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({0}, {3})})), "3 elements, expected all 4"));
  EXPECT_TRUE(says(problem(tensor({4}, {})), "0 elements, expected all 4"));
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({0}, {3}), chunk({2}, {2})})), "more elements than"));
  EXPECT_TRUE(
      says(problem(tensor({4}, {chunk({0}, {2}), chunk({1}, {2})})), "[0 + 2] and [1 + 2], expected no overlap"));
  EXPECT_TRUE(says(problem(tensor({2, 2}, {chunk({0, 0}, {2, 1}), chunk({1, 0}, {1, 2})})), "expected no overlap"));
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({2}, {3})})), "[2 + 3], expected it inside"));
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({std::numeric_limits<int64_t>::max()}, {4})})), "expected it inside"));
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({0, 0}, {4, 1})})), "another number of dims"));
  EXPECT_TRUE(says(problem(tensor({4}, {chunk({}, {4})})), "another number of dims"));
  EXPECT_TRUE(says(problem(tensor({}, {chunk({}, {}), chunk({}, {})})), "more elements than"));
}

TEST(DcpChunks, CheckerWorksLittleForRealShards) {
  DcpTensor sharded = tensor({64, 1000}, {});
  for (int64_t i = 0; i < 64; ++i) sharded.chunks.push_back(chunk({i, 0}, {1, 1000}));
  EXPECT_EQ(ChunkChecker(64).problem(sharded), "");
  DcpTensor grid = tensor({64, 64}, {});
  for (int64_t i = 0; i < 64; ++i) grid.chunks.push_back(chunk({i / 8 * 8, i % 8 * 8}, {8, 8}));
  EXPECT_EQ(ChunkChecker(64 * 16).problem(grid), "");
}

// A staircase, where chunks that lie side by side outnumber any grid's.
TEST(DcpChunks, CheckerLimitsItsWork) {
  const int64_t count = 300;
  DcpTensor hostile = tensor({count, count}, {});
  for (int64_t i = 0; i < count; ++i) {
    hostile.chunks.push_back(chunk({i, i}, {count - i, 1}));
    if (i > 0) hostile.chunks.push_back(chunk({0, i}, {i, 1}));
  }
  EXPECT_EQ(problem(hostile), "");
  EXPECT_NE(ChunkChecker(1000).problem(hostile).find("(limit)"), std::string::npos);
}

TEST(DcpChunks, RunsCoverTheTensorInOrder) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {0}, {1}, {7}, {3, 0, 2}, {5, 3}, {2, 3, 4}, {1, 1, 9}, {9, 1, 1}, {2, 1, 3, 5}}) {
    for (const int64_t limit : {1, 2, 3, 4, 5, 7, 12, 1000}) {
      int64_t next = 0;
      for (const TensorRun& run : cut_into_runs(shape, limit)) {
        EXPECT_EQ(run.first, next);
        EXPECT_GT(run.count, 0);
        EXPECT_LE(run.count, limit);
        next += run.count;
      }
      EXPECT_EQ(next, *checked_numel(shape));
    }
  }
}

// Cuts each dim at random places: the chunks are the boxes of the grid.
std::vector<DcpChunk> random_grid(const std::vector<int64_t>& shape, std::mt19937& random) {
  std::vector<DcpChunk> chunks = {chunk({}, {})};
  for (const int64_t size : shape) {
    std::vector<int64_t> cuts = {0};
    for (int64_t place = 1; place < size; ++place) {
      if (random() % 3 == 0) cuts.push_back(place);
    }
    cuts.push_back(size);
    std::vector<DcpChunk> next;
    for (const DcpChunk& outer : chunks) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        next.push_back(outer);
        next.back().offsets.push_back(cuts[i]);
        next.back().sizes.push_back(cuts[i + 1] - cuts[i]);
      }
    }
    chunks = std::move(next);
  }
  return chunks;
}

TEST(DcpChunks, WindowHasAllThatARunTouches) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> shape;
    for (size_t k = 0; k < random() % 4; ++k) shape.push_back(1 + static_cast<int64_t>(random() % 7));
    const DcpTensor cut = tensor(shape, random_grid(shape, random));
    ChunkWindow window(cut);
    for (const TensorRun& run : cut_into_runs(shape, 1 + static_cast<int64_t>(random() % 20))) {
      const std::vector<size_t> open = window.move_to(run);
      for (size_t i = 0; i < cut.chunks.size(); ++i) {
        if (ChunkPart(shape, run, cut.chunks[i]).count() == 0) continue;
        EXPECT_EQ(std::count(open.begin(), open.end(), i), 1) << "chunk " << i;
      }
    }
  }
}

// Not at each chunk for each run.
TEST(DcpChunks, WindowLooksAtFewChunks) {
  DcpTensor sharded = tensor({1000, 10}, {});
  for (int64_t i = 0; i < 1000; ++i) sharded.chunks.push_back(chunk({999 - i, 0}, {1, 10}));
  ChunkWindow window(sharded);
  size_t num_looks = 0;
  for (const TensorRun& run : cut_into_runs(sharded.shape, 20)) num_looks += window.move_to(run).size();
  EXPECT_EQ(num_looks, 1000u);
}

// The elements of a chunk of a tensor whose element i is i, by the definition of row-major.
std::vector<int32_t> elements_of(const DcpChunk& chunk, const std::vector<int64_t>& shape) {
  std::vector<int32_t> elements;
  for (int64_t i = 0; i < *checked_numel(chunk.sizes); ++i) {
    int64_t rest = i;
    int64_t place = 0;
    int64_t stride = 1;
    for (size_t k = shape.size(); k-- > 0;) {
      place += (chunk.offsets[k] + rest % chunk.sizes[k]) * stride;
      rest /= chunk.sizes[k];
      stride *= shape[k];
    }
    elements.push_back(static_cast<int32_t>(place));
  }
  return elements;
}

// Puts the tensor together from its chunks, run by run; every chunk must be read from front to back.
void expect_assembled(const std::vector<int64_t>& shape, const std::vector<DcpChunk>& chunks, int64_t limit) {
  std::vector<std::vector<int32_t>> stored;
  for (const DcpChunk& chunk : chunks) stored.push_back(elements_of(chunk, shape));
  std::vector<int64_t> next(chunks.size(), 0);
  for (const TensorRun& run : cut_into_runs(shape, limit)) {
    std::vector<int32_t> out(static_cast<size_t>(run.count), -1);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const ChunkPart part(shape, run, chunks[i]);
      if (part.count() == 0) continue;
      ASSERT_EQ(part.first_in_chunk(), next[i]);
      next[i] += part.count();
      const int32_t* from = stored[i].data() + part.first_in_chunk();
      if (part.first_in_run()) {
        std::copy_n(from, part.count(), out.begin() + *part.first_in_run());
      } else {
        part.scatter(from, sizeof(int32_t), out.data());
      }
    }
    for (int64_t i = 0; i < run.count; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], run.first + i);
  }
  for (size_t i = 0; i < chunks.size(); ++i) ASSERT_EQ(next[i], static_cast<int64_t>(stored[i].size()));
}

TEST(DcpChunks, RandomGridsAreAssembled) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> shape(random() % 5);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 5);
    const std::vector<DcpChunk> chunks = random_grid(shape, random);
    ASSERT_EQ(problem(tensor(shape, chunks)), "");
    for (const int64_t limit : {1, 3, 4, 7, 20, 100000}) expect_assembled(shape, chunks, limit);
  }
}

TEST(DcpChunks, WholeRowsAreReadInPlace) {
  const TensorRun run{.first = 6, .count = 6, .dim = 0};  // rows 2 and 3 of [5, 3]
  const ChunkPart rows({5, 3}, run, chunk({1, 0}, {2, 3}));
  EXPECT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.first_in_chunk(), 3);
  EXPECT_EQ(rows.first_in_run(), 0);
  const ChunkPart columns({5, 3}, run, chunk({0, 1}, {5, 2}));
  EXPECT_EQ(columns.count(), 4);
  EXPECT_EQ(columns.first_in_run(), std::nullopt);
}

}  // namespace
}  // namespace fsdp::io
