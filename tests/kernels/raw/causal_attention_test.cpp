#include "kernels/raw/attention/causal_attention.h"

#include "kernels/raw/products/pair_gemm.h"
#include "tests/kernels/raw/attention_runs.h"

namespace fsdp::kernels::raw::attention {
namespace {

constexpr int64_t kAll = 1 << 20;  // a window that hides nothing

// The last ones have several blocks of keys: all seen, some hidden, most hidden.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 1, 8, kAll, {1}},    {2, 1, 24, kAll, {15, 16, 17}}, {4, 2, 64, kAll, {33, 1, 65}}, {3, 3, 80, 17, {70, 48}},
      {4, 1, 10, 1, {16, 18}}, {2, 2, 16, 100, {129, 130}},    {2, 1, 32, 5, {20, 90, 128}},  {1, 1, 16, kAll, {1100}},
      {1, 1, 24, 600, {1030}}, {2, 1, 8, 40, {700, 513}},
  };
  return all;
}

template <class T, class Check>
void for_each_case(const Check& check) {
  for (const Case& c : cases()) {
    SCOPED_TRACE("heads of " + std::to_string(c.dim) + ", document of " + std::to_string(c.lengths.front()));
    ASSERT_NO_FATAL_FAILURE(check(Attention<T>(c)));
  }
}

struct Rows {
  int64_t columns, stride, document_end;
};

// Sums in fp32; with pairs, of terms that were rounded to bf16.
template <class T>
void expect_rows(const Guarded<T>& got, const std::vector<Sum>& expected, Rows rows, Way way) {
  const double of_terms = kFine + (way == Way::kPairs ? kRounding<Bf16> : 0);
  for (int64_t at = 0; at < got.size(); ++at) {
    const int64_t token = at / rows.stride, column = at % rows.stride;
    const Sum& sum = expected.data()[at];
    if (token >= kTokensBefore && token < rows.document_end && column < rows.columns)
      ASSERT_NEAR(got[at], sum.value, kFine + of_terms * sum.size + kRounding<T> * std::abs(sum.value))
          << "token " << token << ", column " << column;
    else
      ASSERT_EQ(got[at], to_float(got.guard())) << "token " << token << ", column " << column;
  }
  ASSERT_TRUE(got.is_intact());
}

template <class T>
void check_causal_forward(const Attention<T>& of, Way way) {
  const Forward<T> got(of, of.tasks, way);
  const int64_t heads = of.sizes.heads;
  expect_rows(got.y, of.y, {heads * of.sizes.dim, of.stride(), of.document_end}, way);
  expect_rows(got.log_sum_exp, of.log_sum_exp, {heads, heads, of.document_end}, Way::kSingle);
}

template <class T>
void check_causal_backward(const Attention<T>& of, Way way) {
  const Backward<T> got(of, of.tasks, way);
  const Rows rows{of.sizes.heads * of.sizes.dim, of.stride(), of.document_end};
  const Rows key_rows{of.sizes.key_heads * of.sizes.dim, of.key_stride(), of.document_end};
  expect_rows(got.grad_q, of.grad_q, rows, way);
  expect_rows(got.grad_k, of.grad_k, key_rows, way);
  expect_rows(got.grad_v, of.grad_v, key_rows, way);
}

template <class T>
void check_in_fp32(const Attention<T>& of) {
  for_each_isa([&] {
    ASSERT_NO_FATAL_FAILURE(check_causal_forward(of, Way::kSingle));
    ASSERT_NO_FATAL_FAILURE(check_causal_backward(of, Way::kSingle));
  });
}

TEST(RawCausalAttention, AndItsGradientsEqualTheFormulasInDoublePrecision) {
  for_each_case<float>(check_in_fp32<float>);
  for_each_case<Bf16>(check_in_fp32<Bf16>);
}

TEST(RawCausalAttention, OfPairsEqualsTheFormulasInDoublePrecision) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  for_each_case<Bf16>([](const Attention<Bf16>& of) {
    ASSERT_NO_FATAL_FAILURE(check_causal_forward(of, Way::kPairs));
    ASSERT_NO_FATAL_FAILURE(check_causal_backward(of, Way::kPairs));
  });
}

// Both round what they write.
void expect_near(const Guarded<Bf16>& got, const Guarded<Bf16>& other, const std::vector<Sum>& expected) {
  for (int64_t at = 0; at < got.size(); ++at) {
    const Sum& sum = expected.data()[at];
    ASSERT_NEAR(got[at], other[at], kFine + kRounding<Bf16> * (sum.size + 2 * std::abs(sum.value))) << "at " << at;
  }
}

TEST(RawCausalAttention, OfPairsIsNearTheOneInFp32) {
  if (!has_pair_gemm()) GTEST_SKIP() << "this processor does not multiply pairs of bf16";
  for_each_case<Bf16>([](const Attention<Bf16>& of) {
    const Forward<Bf16> pairs(of, of.tasks, Way::kPairs), single(of, of.tasks, Way::kSingle);
    ASSERT_NO_FATAL_FAILURE(expect_near(pairs.y, single.y, of.y));
    const Backward<Bf16> pairs_back(of, of.tasks, Way::kPairs), single_back(of, of.tasks, Way::kSingle);
    ASSERT_NO_FATAL_FAILURE(expect_near(pairs_back.grad_q, single_back.grad_q, of.grad_q));
    ASSERT_NO_FATAL_FAILURE(expect_near(pairs_back.grad_k, single_back.grad_k, of.grad_k));
    ASSERT_NO_FATAL_FAILURE(expect_near(pairs_back.grad_v, single_back.grad_v, of.grad_v));
  });
}

// Whether what differs from guards are the task's tokens, and `count` columns from `first` on.
template <class T>
bool wrote_only(const Guarded<T>& rows, int64_t stride, const Task& task, int64_t first, int64_t count) {
  for (int64_t at = 0; at < rows.size(); ++at) {
    const int64_t token = at / stride - task.first_token, column = at % stride - first;
    const bool is_own = token >= 0 && token < task.length && column >= 0 && column < count;
    if (!is_own && rows[at] != to_float(rows.guard())) return false;
  }
  return rows.is_intact();
}

// Other threads write beside it.
template <class T>
void check_writes(const Attention<T>& of, Way way) {
  const int64_t dim = of.sizes.dim, group = of.sizes.group(), stride = of.stride(), key_stride = of.key_stride();
  for (const Task& task : of.tasks) {
    const int64_t head = task.key_head * group;
    const Forward<T> forward(of, {task}, way);
    const Backward<T> backward(of, {task}, way);
    ASSERT_TRUE(wrote_only(forward.y, stride, task, head * dim, group * dim));
    ASSERT_TRUE(wrote_only(forward.log_sum_exp, of.sizes.heads, task, head, group));
    ASSERT_TRUE(wrote_only(backward.grad_q, stride, task, head * dim, group * dim));
    ASSERT_TRUE(wrote_only(backward.grad_k, key_stride, task, task.key_head * dim, dim));
    ASSERT_TRUE(wrote_only(backward.grad_v, key_stride, task, task.key_head * dim, dim));
  }
}

TEST(RawCausalAttention, ATaskWritesItsOwnTokensAndHeadsAlone) {
  const Case grouped{4, 2, 24, 20, {17, 33, 5}};
  const Attention<float> of(grouped);
  const Attention<Bf16> of_bf16(grouped);
  for_each_isa([&] {
    ASSERT_NO_FATAL_FAILURE(check_writes(of, Way::kSingle));
    ASSERT_NO_FATAL_FAILURE(check_writes(of_bf16, Way::kSingle));
    if (!has_pair_gemm()) return;
    ASSERT_NO_FATAL_FAILURE(check_writes(of_bf16, Way::kPairs));
  });
}

// A text's tokens have the same bits whatever follows them.
template <class T>
void check_beginnings(const Attention<T>& of, Way way) {
  Forward<T> all(of, of.tasks, way);
  for (const int64_t length : {1, 16, 63, 64, 65, 130}) {
    Task beginning = of.tasks.front();
    beginning.length = length;
    Forward<T> some(of, {beginning}, way);
    const int64_t first = beginning.first_token, heads = of.sizes.heads;
    ASSERT_TRUE(
        same_bits(some.log_sum_exp.data() + first * heads, all.log_sum_exp.data() + first * heads, length * heads));
    for (int64_t token = first; token < first + length; ++token) {
      const int64_t at = token * of.stride();
      ASSERT_TRUE(same_bits(some.y.data() + at, all.y.data() + at, heads * of.sizes.dim)) << token << " of " << length;
    }
  }
}

TEST(RawCausalAttention, LaterTokensDoNotChangeEarlierOnes) {
  for (const int64_t window : {kAll, int64_t{20}}) {
    const Case one{2, 1, 24, window, {150}};
    const Attention<float> of(one);
    const Attention<Bf16> of_bf16(one);
    for_each_isa([&] {
      ASSERT_NO_FATAL_FAILURE(check_beginnings(of, Way::kSingle));
      ASSERT_NO_FATAL_FAILURE(check_beginnings(of_bf16, Way::kSingle));
      if (!has_pair_gemm()) return;
      ASSERT_NO_FATAL_FAILURE(check_beginnings(of_bf16, Way::kPairs));
    });
  }
}

}  // namespace
}  // namespace fsdp::kernels::raw::attention
