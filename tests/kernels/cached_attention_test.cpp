#include "kernels/operators/cached_attention.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

#include "kernels/operators/cached_attention_device.h"
#include "tests/kernels/compare.h"

namespace fsdp::kernels::cached_attention_test {
namespace {

struct Case {
  int64_t heads, key_heads, dim, window;
};

// Attention of q [T, H, D] at position `start` over k, v [S, K, D], written out.
at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t start, int64_t window) {
  const int64_t group = q.size(1) / k.size(1), tokens = q.size(0), keys = start + tokens;
  const at::Tensor q_HTD = q.to(at::kDouble).transpose(0, 1);
  const auto heads_of = [&](const at::Tensor& x) {
    return x.slice(0, 0, keys).to(at::kDouble).repeat_interleave(group, 1).transpose(0, 1);
  };
  at::Tensor scores = at::matmul(q_HTD, heads_of(k).transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor position = at::arange(start, keys).unsqueeze(1), key = at::arange(keys).unsqueeze(0);
  at::Tensor hidden = key.gt(position);
  if (window > 0) hidden = hidden.logical_or(key.le(position - window));
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), heads_of(v)).transpose(0, 1);
}

struct Cache {
  at::Tensor k, v;  // [R, K, C, W]
};

Cache filled_cache(int64_t rows, int64_t capacity, const Case& c, at::ScalarType dtype) {
  const auto made = [&] {
    const at::Tensor cache = at::full({rows, c.key_heads, capacity, cached_width(c.dim)}, 77, dtype);
    for (int64_t row = 0; row < rows; ++row)
      store_in_cache(values({1, capacity, c.key_heads, c.dim}, dtype), cache, {row}, {0});
    return cache;
  };
  const at::Tensor k = made();
  return {k, made()};
}

// Row `row` as [C, K, D].
at::Tensor plain(const at::Tensor& cache, int64_t row, int64_t dim) {
  return cache.select(0, row).transpose(0, 1).slice(2, 0, dim);
}

TEST(CachedAttention, EqualsAttentionWrittenOut) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c :
         std::vector<Case>{{9, 3, 64, 0}, {4, 4, 10, 0}, {4, 2, 14, 5}, {2, 1, 80, 300}, {8, 1, 16, 1}}) {
      const Cache cache = filled_cache(3, 700, c, dtype);
      const std::vector<int64_t> rows = {2, 0}, starts = {600, 13};
      for (const int64_t tokens : {1, 6}) {
        const at::Tensor q = values({2, tokens, c.heads, c.dim}, dtype);
        const at::Tensor y = cached_attention(q, cache.k, cache.v, rows, starts, c.window);
        const at::Tensor of_devices = attend_on_device(q, cache.k, cache.v, rows, starts, c.window);
        for (int64_t b = 0; b < 2; ++b) {
          const size_t i = static_cast<size_t>(b);
          const at::Tensor expected =
              reference(q[b], plain(cache.k, rows[i], c.dim), plain(cache.v, rows[i], c.dim), starts[i], c.window);
          const auto label = c10::str(dtype, " heads ", c.heads, " dim ", c.dim, " window ", c.window, " row ", b);
          EXPECT_LE(relative_difference(y[b], expected), dtype == at::kFloat ? 3e-6 : 8e-3) << label;
          EXPECT_LE(relative_difference(of_devices[b], expected), dtype == at::kFloat ? 3e-6 : 2e-2) << label;
        }
      }
    }
  }
}

TEST(CachedAttention, ARowDependsOnNothingBesideIt) {
  torch::manual_seed(2);
  const Case c{6, 2, 24, 0};
  const Cache cache = filled_cache(3, 600, c, at::kFloat);
  const at::Tensor q = values({3, 1, c.heads, c.dim}, at::kFloat);
  const std::vector<int64_t> starts = {599, 0, 255};
  const at::Tensor all = cached_attention(q, cache.k, cache.v, {0, 1, 2}, starts);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(cached_attention(q, cache.k, cache.v, {0, 1, 2}, starts), all));
  at::set_num_threads(threads);
  for (int64_t row = 0; row < 3; ++row) {
    const at::Tensor alone =
        cached_attention(q.narrow(0, row, 1), cache.k, cache.v, {row}, {starts[static_cast<size_t>(row)]});
    EXPECT_TRUE(at::equal(alone, all.narrow(0, row, 1))) << row;
  }
}

// Bytes of the CPU that this thread allocates, at most at a time.
class MostBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_ += bytes;
    most_ = std::max(most_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t most() const { return most_; }

 private:
  int64_t held_ = 0;
  int64_t most_ = 0;
};

// All at once their blocks would leave 130 MB. Each token has the bits that it has alone.
TEST(CachedAttention, ManyNewTokensAreTakenInPieces) {
  constexpr uint64_t kSeed = 3;
  constexpr int64_t kTokens = 1000, kScratchBytes = int64_t{32} << 20;
  torch::manual_seed(kSeed);
  const Case c{16, 2, 16, 300};
  const Cache cache = filled_cache(2, 8000, c, at::kFloat);
  const at::Tensor q = values({2, kTokens, c.heads, c.dim}, at::kFloat);
  const std::vector<int64_t> rows = {1, 0}, starts = {7000, 6500};
  const auto account = std::make_shared<MostBytes>();
  at::Tensor y;
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
    y = cached_attention(q, cache.k, cache.v, rows, starts, c.window);
  }
  EXPECT_LE(account->most(), kScratchBytes + static_cast<int64_t>(y.nbytes()));
  for (int64_t token = 0; token < kTokens; ++token) {
    const at::Tensor alone = cached_attention(q.narrow(1, token, 1), cache.k, cache.v, rows,
                                              {starts[0] + token, starts[1] + token}, c.window);
    ASSERT_TRUE(at::equal(alone, y.narrow(1, token, 1))) << "seed " << kSeed << ", token " << token;
  }
}

TEST(CachedAttention, RefusesWhatDoesNotFit) {
  const Case c{2, 1, 16, 0};
  const Cache cache = filled_cache(2, 8, c, at::kFloat);
  const at::Tensor q = at::ones({1, 1, 2, 16});
  EXPECT_THROW(cached_attention(q, cache.k, cache.v, {2}, {0}), c10::Error);
  EXPECT_THROW(cached_attention(q, cache.k, cache.v, {0}, {8}), c10::Error);
  EXPECT_THROW(cached_attention(q, cache.k, cache.v, {0, 1}, {0}), c10::Error);
  EXPECT_THROW(cached_attention(q.to(at::kBFloat16), cache.k, cache.v, {0}, {0}), c10::Error);
  EXPECT_THROW(store_in_cache(at::ones({1, 9, 1, 16}), cache.k, {0}, {0}), c10::Error);
  EXPECT_THROW(store_in_cache(at::ones({1, 1, 2, 16}), cache.k, {0}, {0}), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::cached_attention_test
