#include "kernels/operators/rope.h"

#include <tuple>

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::rope_test {
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

// Columns of one tensor, as a fused product leaves them, or tensors of their own; with heads apart or not.
TEST(Rope, InPlaceGivesTheSameBits) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool per_row : {false, true}) {
      const Inputs table = per_row ? tables({3, 7, 10}, dtype) : tables({7, 10}, dtype);
      const at::Tensor qkv = values({3, 7, 80}, dtype).requires_grad_();
      const at::Tensor grad_q = values({3, 7, 4, 10}, dtype), grad_k = values({3, 7, 2, 10}, dtype);
      const auto [q, k] = apply_rope(qkv.narrow(2, 0, 40).unflatten(2, {4, 10}),
                                     qkv.narrow(2, 40, 20).unflatten(2, {2, 10}), table[0], table[1]);
      const at::Tensor expected = torch::autograd::grad({q, k}, {qkv}, {grad_q, grad_k})[0];
      for (const bool flat : {false, true}) {
        const auto part = [&](int64_t begin, int64_t heads) {  // a tensor that autograd knows as no view
          const at::Tensor x = at::empty({3, 7, 2 * heads * 10}, dtype).narrow(2, 3, heads * 10);
          x.copy_(qkv.detach().narrow(2, begin, heads * 10));
          return (flat ? x : x.unflatten(2, {heads, 10})).detach().requires_grad_();
        };
        const at::Tensor q_leaf = part(0, 4), k_leaf = part(40, 2);
        struct Same : torch::autograd::Function<Same> {
          static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
            const at::AutoDispatchBelowADInplaceOrView below;
            return at::empty_strided(x.sizes(), x.strides(), x.options()).copy_(x);
          }
          static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                         torch::autograd::variable_list grads) {
            return grads;
          }
        };
        at::Tensor turned_q = Same::apply(q_leaf), turned_k = Same::apply(k_leaf);
        const void* memory = turned_q.const_data_ptr();
        apply_rope_(turned_q, turned_k, table[0], table[1]);
        EXPECT_EQ(turned_q.const_data_ptr(), memory);
        EXPECT_TRUE(at::equal(turned_q.reshape(q.sizes()), q)) << dtype << " flat " << flat;
        EXPECT_TRUE(at::equal(turned_k.reshape(k.sizes()), k)) << dtype << " flat " << flat;
        const auto grads = torch::autograd::grad({turned_q, turned_k}, {q_leaf, k_leaf},
                                                 {grad_q.view(turned_q.sizes()), grad_k.view(turned_k.sizes())});
        EXPECT_TRUE(at::equal(grads[0].reshape({3, 7, 40}), expected.narrow(2, 0, 40)));
        EXPECT_TRUE(at::equal(grads[1].reshape({3, 7, 20}), expected.narrow(2, 40, 20)));
      }
    }
  }
}

TEST(Rope, InPlaceRefusesWhatItCannotReach) {
  at::Tensor q = at::ones({1, 2, 8}), k = at::ones({1, 2, 8});
  const at::Tensor table = at::ones({2, 3});
  EXPECT_THROW(apply_rope_(q, k, table, table), c10::Error);
  const at::Tensor fitting = at::ones({2, 4});
  at::Tensor scattered = at::ones({1, 2, 16}).slice(2, 0, 16, 2);
  EXPECT_THROW(apply_rope_(scattered, k, fitting, fitting), c10::Error);
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

TEST(Rope, HasFirstDerivativesOnly) {
  torch::manual_seed(5);
  const Inputs table = tables({6, 8}, at::kFloat);
  for (const bool in_place : {false, true}) {
    expect_first_derivatives_only(
        [&](const Inputs& in) {
          at::Tensor q = in[0] * 1, k = in[1] * 1;
          if (in_place) {
            apply_rope_(q, k, table[0], table[1]);
          } else {
            std::tie(q, k) = apply_rope(q, k, table[0], table[1]);
          }
          return at::cat({q, k}, 2);
        },
        {values({2, 6, 4, 8}, at::kFloat), values({2, 6, 2, 8}, at::kFloat)}, "rope");
  }
}

}  // namespace
}  // namespace fsdp::kernels::rope_test
