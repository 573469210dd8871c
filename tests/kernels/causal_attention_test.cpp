#include "kernels/operators/causal_attention.h"

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::causal_attention_test {
namespace {

// One document after the other, with everything in fp32.
at::Tensor reference(const Inputs& in, std::vector<int64_t> lengths, int64_t window = 0) {
  const int64_t rows = in[0].size(0), length = in[0].size(1), heads = in[0].size(2), dim = in[0].size(3);
  if (lengths.empty()) lengths.assign(static_cast<size_t>(length > 0 ? rows : 0), length);
  const int64_t group = heads / in[1].size(2);
  const auto by_head = [&](const at::Tensor& x, int64_t repeat) {
    return x.to(at::kFloat).repeat_interleave(repeat, 2).reshape({rows * length, heads, dim}).transpose(0, 1);
  };
  const at::Tensor q = by_head(in[0], 1), k = by_head(in[1], group), v = by_head(in[2], group);
  Inputs results;
  int64_t first = 0;
  for (const int64_t count : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, first, count); };
    const at::Tensor scores = at::matmul(part(q), part(k).transpose(1, 2)) / std::sqrt(static_cast<double>(dim));
    at::Tensor unseen = at::ones({count, count}, at::kBool).triu(1);
    if (window > 0) unseen = unseen.logical_or(at::ones({count, count}, at::kBool).tril(-window));
    results.push_back(at::matmul(scores.masked_fill(unseen, -INFINITY).softmax(-1), part(v)));
    first += count;
  }
  const at::Tensor y = results.empty() ? q : at::cat(results, 1);
  return y.transpose(0, 1).reshape(in[0].sizes()).to(in[0].scalar_type());
}

struct Case {
  int64_t rows, length, heads, key_heads, dim;
  std::vector<int64_t> documents;
};

TEST(CausalAttention, EqualsComposite) {
  torch::manual_seed(1);
  const std::vector<Case> cases = {{1, 1, 1, 1, 2, {}},
                                   {2, 5, 4, 2, 10, {}},
                                   {1, 64, 2, 1, 16, {}},
                                   {2, 65, 3, 3, 18, {}},
                                   {1, 200, 6, 2, 64, {}},
                                   {0, 4, 2, 1, 8, {}},
                                   {2, 0, 2, 1, 8, {}},
                                   {1, 40, 4, 2, 8, {17, 1, 22}},
                                   {2, 70, 2, 2, 24, {70, 69, 1}},
                                   {1, 150, 2, 1, 32, {63, 65, 22}},
                                   {1, 1101, 2, 1, 20, {}},  // several blocks of keys
                                   {1, 1300, 2, 1, 16, {530, 257, 513}}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : cases) {
      const std::vector<int64_t> keys = {c.rows, c.length, c.key_heads, c.dim};
      expect_same([&](const Inputs& in) { return causal_attention(in[0], in[1], in[2], c.documents); },
                  [&](const Inputs& in) { return reference(in, c.documents); },
                  {2 * values({c.rows, c.length, c.heads, c.dim}, dtype), values(keys, dtype), values(keys, dtype)},
                  dtype == at::kFloat ? 1e-5 : 1.2e-2, c10::str(dtype, " T=", c.length, " D=", c.dim));
    }
  }
}

TEST(CausalAttention, WindowsEqualComposite) {
  torch::manual_seed(4);
  const std::vector<Case> cases = {{2, 65, 3, 3, 18, {}},
                                   {1, 200, 4, 2, 16, {}},
                                   {1, 150, 2, 1, 32, {63, 65, 22}},
                                   {2, 70, 2, 2, 24, {70, 69, 1}},
                                   {1, 1201, 2, 1, 8, {}}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : cases) {
      for (const int64_t window : {1, 2, 9, 16, 17, 64, 65, 511, 513, 1000}) {
        const std::vector<int64_t> keys = {c.rows, c.length, c.key_heads, c.dim};
        // Who sees one key has a softmax of 1 and gradients of q and k that are 0: what is compared is noise.
        const double fp32 = window == 1 ? 1e-3 : 1e-5;
        expect_same([&](const Inputs& in) { return causal_attention(in[0], in[1], in[2], c.documents, window); },
                    [&](const Inputs& in) { return reference(in, c.documents, window); },
                    {2 * values({c.rows, c.length, c.heads, c.dim}, dtype), values(keys, dtype), values(keys, dtype)},
                    dtype == at::kFloat ? fp32 : 1.2e-2, c10::str(dtype, " T=", c.length, " window=", window));
      }
    }
  }
}

// Keys outside the window are not only masked: what lies there plays no part at all.
TEST(CausalAttention, NotANumberOutsideTheWindowIsNotSeen) {
  torch::manual_seed(5);
  const at::Tensor q = at::randn({1, 400, 2, 8}), k = at::randn({1, 400, 1, 8}), v = at::randn({1, 400, 1, 8});
  at::Tensor bad_k = k.clone(), bad_v = v.clone();
  bad_k.narrow(1, 0, 100).fill_(NAN);
  bad_v.narrow(1, 0, 100).fill_(NAN);
  const at::Tensor y = causal_attention(q, k, v, {}, 20), other = causal_attention(q, bad_k, bad_v, {}, 20);
  EXPECT_TRUE(at::equal(y.narrow(1, 256, 144), other.narrow(1, 256, 144)));
}

// As a fused product leaves q, k and v: the bits of dense inputs.
TEST(CausalAttention, TakesColumnsOfOneTensor) {
  torch::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor qkv = at::randn({2, 37, 8, 24}).to(dtype), grad = at::randn({2, 37, 4, 24}).to(dtype);
    const auto run = [&](bool dense) {
      std::vector<at::Tensor> parts = {qkv.narrow(2, 0, 4), qkv.narrow(2, 4, 2), qkv.narrow(2, 6, 2)};
      for (at::Tensor& part : parts) part = (dense ? part.clone(at::MemoryFormat::Contiguous) : part).detach();
      for (at::Tensor& part : parts) part.requires_grad_();
      const at::Tensor y = causal_attention(parts[0], parts[1], parts[2]);
      auto results = torch::autograd::grad({y}, parts, {grad});
      results.push_back(y);
      return results;
    };
    const auto actual = run(false), expected = run(true);
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << dtype << " " << i;
  }
}

TEST(CausalAttention, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  const auto view = [](const at::Tensor& x) { return x.transpose(1, 2); };
  expect_same([&](const Inputs& in) { return causal_attention(view(in[0]), view(in[1]), view(in[2])); },
              [&](const Inputs& in) {
                return reference({view(in[0]), view(in[1]), view(in[2])}, {});
              },
              {values({2, 4, 9, 8}, at::kFloat), values({2, 2, 9, 8}, at::kFloat), values({2, 2, 9, 8}, at::kFloat)},
              1e-5, "transposed");
}

TEST(CausalAttention, DoesNotDependOnThreads) {
  torch::manual_seed(3);
  const Inputs inputs = {at::randn({2, 100, 4, 16}), at::randn({2, 100, 2, 16}), at::randn({2, 100, 2, 16})};
  const int threads = at::get_num_threads();
  std::vector<Inputs> results;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    Inputs leaves;
    for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
    causal_attention(leaves[0], leaves[1], leaves[2]).pow(2).sum().backward();
    results.push_back({leaves[0].grad(), leaves[1].grad(), leaves[2].grad()});
  }
  at::set_num_threads(threads);
  for (const Inputs& result : results)
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(at::equal(result[i], results[0][i]));
}

// In both dtypes a token's result depends on what it sees alone: not on what comes later, nor on documents beside it.
TEST(CausalAttention, ATokenDependsOnWhatItSeesAlone) {
  torch::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto make = [&](int64_t heads) { return at::randn({1, 1400, heads, 16}).to(dtype); };
    const at::Tensor q = make(4), k = make(2), v = make(2);
    const auto part = [](const at::Tensor& x) { return x.narrow(1, 0, 700); };
    const at::Tensor whole = causal_attention(q, k, v), first = causal_attention(part(q), part(k), part(v));
    EXPECT_TRUE(at::equal(part(whole), first)) << dtype;
    EXPECT_TRUE(at::equal(part(causal_attention(q, k, v, {700, 31, 669})), first)) << dtype;
  }
}

// Scores of which e^score overflows, and that grow from one block of keys to the next.
TEST(CausalAttention, SurvivesLargeScoresInBf16) {
  torch::manual_seed(7);
  const at::Tensor q = at::full({1, 1100, 1, 16}, 30.0f).to(at::kBFloat16);
  const at::Tensor k = at::linspace(-20, 20, 1100 * 16).view({1, 1100, 1, 16}).to(at::kBFloat16);
  const at::Tensor v = at::randn({1, 1100, 1, 16}).to(at::kBFloat16);
  EXPECT_LT(relative_difference(causal_attention(q, k, v), reference({q, k, v}, {})), 1.2e-2);
}

TEST(CausalAttention, SurvivesLargeScores) {
  const at::Tensor q = at::full({1, 20, 1, 4}, 30.0f), k = at::linspace(-100, 100, 80).view({1, 20, 1, 4}).contiguous();
  expect_same([](const Inputs& in) { return causal_attention(in[0], in[1], in[2]); },
              [](const Inputs& in) { return reference(in, {}); }, {q, k, at::randn({1, 20, 1, 4})}, 2e-3, "large");
}

TEST(CausalAttention, RefusesWhatDoesNotFit) {
  const at::Tensor q = at::ones({1, 6, 4, 8}), k = at::ones({1, 6, 2, 8});
  EXPECT_THROW(causal_attention(q, at::ones({1, 6, 3, 8}), at::ones({1, 6, 3, 8})), c10::Error);
  EXPECT_THROW(causal_attention(q, k, at::ones({1, 5, 2, 8})), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k.to(at::kBFloat16)), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k, {2, 3}), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k, {0, 6}), c10::Error);
  EXPECT_THROW(causal_attention(q, k, k, {}, -1), c10::Error);
}

TEST(CausalAttention, HasFirstDerivativesOnly) {
  torch::manual_seed(8);
  expect_first_derivatives_only([](const Inputs& in) { return causal_attention(in[0], in[1], in[2]); },
                                {at::randn({2, 9, 4, 8}), at::randn({2, 9, 2, 8}), at::randn({2, 9, 2, 8})},
                                "causal_attention");
}

}  // namespace
}  // namespace fsdp::kernels::causal_attention_test
