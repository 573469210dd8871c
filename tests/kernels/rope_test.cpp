#include "kernels/rope.h"

#include "tests/kernels/compare.h"

namespace fsdp::kernels {
namespace {

// As in Hugging Face's apply_rotary_pos_emb, for [B, T, heads, D].
at::Tensor reference(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos.unsqueeze(-2) + at::cat({-halves[1], halves[0]}, -1) * sin.unsqueeze(-2);
}

Inputs tables(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::vector<int64_t> half(sizes.begin(), sizes.end());
  half.back() /= 2;
  const at::Tensor angles = 7 * at::rand(half), both = at::cat({angles, angles}, -1);
  return {both.cos().to(dtype), both.sin().to(dtype)};
}

TEST(Rope, EqualsComposite) {
  torch::manual_seed(1);
  struct Case {
    int64_t rows, length, q_heads, k_heads, dim;
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : {Case{1, 1, 1, 1, 2}, Case{2, 3, 4, 2, 10}, Case{2, 5, 3, 1, 64}, Case{3, 200, 4, 4, 32},
                          Case{1, 7, 2, 2, 34}, Case{0, 4, 2, 1, 8}, Case{2, 0, 2, 1, 8}}) {
      for (const bool per_row : {false, true}) {
        const Inputs table = per_row ? tables({c.rows, c.length, c.dim}, dtype) : tables({c.length, c.dim}, dtype);
        const auto join = [](const at::Tensor& q, const at::Tensor& k) { return at::cat({q, k}, 2); };
        expect_same(
            [&](const Inputs& in) {
              const auto [q, k] = apply_rope(in[0], in[1], table[0], table[1]);
              return join(q, k);
            },
            [&](const Inputs& in) {
              return join(reference(in[0], table[0], table[1]), reference(in[1], table[0], table[1]));
            },
            {values({c.rows, c.length, c.q_heads, c.dim}, dtype), values({c.rows, c.length, c.k_heads, c.dim}, dtype)},
            tolerance_of(dtype), c10::str(dtype, " T=", c.length, " D=", c.dim, " per row ", per_row));
      }
    }
  }
}

TEST(Rope, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  const Inputs table = tables({6, 8}, at::kFloat);
  expect_same(
      [&](const Inputs& in) {
        return apply_rope(in[0].transpose(1, 2), in[0].transpose(1, 2), table[0], table[1]).first;
      },
      [&](const Inputs& in) { return reference(in[0].transpose(1, 2), table[0], table[1]); },
      {values({2, 3, 6, 8}, at::kFloat)}, 4e-6, "transposed");
}

TEST(Rope, RoundsAsSeparateOperatorsDo) {
  torch::manual_seed(3);
  const Inputs table = tables({9, 32}, at::kBFloat16);
  const at::Tensor x = values({1, 9, 2, 32}, at::kBFloat16);
  EXPECT_TRUE(at::equal(apply_rope(x, x, table[0], table[1]).first, reference(x, table[0], table[1])));
}

TEST(Rope, RefusesWhatDoesNotFit) {
  const at::Tensor x = at::ones({2, 3, 1, 4});
  EXPECT_THROW(apply_rope(x, x, at::ones({4, 4}), at::ones({4, 4})), c10::Error);
  EXPECT_THROW(apply_rope(x, x, at::ones({3, 4}), at::ones({3, 2})), c10::Error);
  EXPECT_THROW(apply_rope(x, x, at::ones({3, 4}, at::kBFloat16), at::ones({3, 4}, at::kBFloat16)), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels
