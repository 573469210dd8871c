#include "kernels/raw/attention/cached_attention.h"

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

struct CachedShape {
  int64_t count, width, group;
};

// Scores between -10 and 10.
template <class T>
struct Inputs {
  explicit Inputs(CachedShape shape)
      : shape(shape),
        k(random_numbers<T>(shape.count * shape.width, 1)),
        v(random_numbers<T>(shape.count * shape.width, 2)),
        queries(random_floats(shape.group * shape.width, 3, 6 / std::sqrt(static_cast<float>(shape.width)))) {}

  int64_t partial_size() const { return CachedBlock<T>::partial_size(shape.group, shape.width); }
  void attend(int64_t query, int64_t group, float* partial) const {
    attend_block(
        CachedBlock<T>{k.data(), v.data(), queries.data() + query * shape.width, shape.count, shape.width, group},
        partial);
  }

  CachedShape shape;
  std::vector<T> k, v;
  std::vector<float> queries;
};

// A query's scores, in double precision.
template <class T>
std::vector<double> scores_of(const Inputs<T>& in, int64_t query) {
  std::vector<double> scores;
  for (int64_t key = 0; key < in.shape.count; ++key) {
    double score = 0;
    for (int64_t i = 0; i < in.shape.width; ++i)
      score += static_cast<double>(in.queries.data()[query * in.shape.width + i]) *
               to_float(in.k.data()[key * in.shape.width + i]);
    scores.push_back(score);
  }
  return scores;
}

template <class T>
void expect_partial(const Inputs<T>& in, int64_t query, const Guarded<float>& partial) {
  const int64_t width = in.shape.width, at = query * (width + kLanes);
  const std::vector<double> scores = scores_of(in, query);
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - top);
  ASSERT_NEAR(partial[at], top, kFine * (1 + std::abs(top)));
  ASSERT_NEAR(partial[at + 1], sum, kFine * sum);
  for (int64_t i = 0; i < width; ++i) {
    double expected = 0, size = 0;
    for (int64_t key = 0; key < in.shape.count; ++key) {
      const double term = std::exp(scores.data()[key] - top) * to_float(in.v.data()[key * width + i]);
      expected += term;
      size += std::abs(term);
    }
    ASSERT_NEAR(partial[at + kLanes + i], expected, kFine * size) << "at " << i;
  }
}

template <class T>
void check_cached(CachedShape shape) {
  const Inputs<T> in(shape);
  Guarded<float> partial(in.partial_size());
  in.attend(0, shape.group, partial.data());
  for (int64_t query = 0; query < shape.group; ++query) ASSERT_NO_FATAL_FAILURE(expect_partial(in, query, partial));
  ASSERT_TRUE(partial.is_intact());
  // Alone a query has the same bits.
  const int64_t last = shape.group - 1, size = shape.width + kLanes;
  Guarded<float> alone(size);
  in.attend(last, 1, alone.data());
  const float* together = partial.data() + last * size;
  ASSERT_TRUE(same_bits(alone.data(), together, 2) && same_bits(alone.data() + kLanes, together + kLanes, shape.width));
}

template <class T>
void check_all() {
  for (const int64_t count : {1, 7, 8, 15, 16, 17, 33, 100, 255, 256})
    for (const int64_t width : {16, 32, 48, 64, 80, 128})
      for (const int64_t group : {1, 3}) {
        SCOPED_TRACE(std::to_string(count) + " keys of " + std::to_string(width));
        ASSERT_NO_FATAL_FAILURE(check_cached<T>({count, width, group}));
      }
}

TEST(RawCachedAttention, BlocksEqualTheFormulaInDoublePrecision) {
  for_each_isa([] {
    ASSERT_NO_FATAL_FAILURE(check_all<float>());
    ASSERT_NO_FATAL_FAILURE(check_all<Bf16>());
  });
}

// Far apart, with the highest at any place: nothing overflows, and what is small leaves no trace.
TEST(RawCachedAttention, TakesLargeScores) {
  for_each_isa([] {
    for (const int64_t count : {1, 8, 17, 256})
      for (int64_t highest = 0; highest < count; highest += 5) {
        std::vector<float> k(static_cast<size_t>(count * 16)), v = random_floats(count * 16, 1), query(16);
        for (int64_t key = 0; key < count; ++key) k.data()[key * 16] = key == highest ? 3000.0f : -3000.0f;
        query[0] = 1;
        Guarded<float> partial(CachedBlock<float>::partial_size(1, 16));
        attend_block(CachedBlock<float>{k.data(), v.data(), query.data(), count, 16, 1}, partial.data());
        ASSERT_EQ(partial[0], 3000);
        ASSERT_EQ(partial[1], 1);
        for (int64_t i = 0; i < 16; ++i) ASSERT_EQ(partial[kLanes + i], v.data()[highest * 16 + i]);
      }
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
