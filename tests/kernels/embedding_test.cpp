#include "kernels/operators/embedding.h"

#include "kernels/products/linear.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::embedding_test {
namespace {

TEST(Embedding, EqualsAtEmbedding) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1}, {40}, {3, 7}, {0}, {2, 0}}) {
      for (const int64_t width : {1, 16, 37}) {
        const at::Tensor ids = at::randint(0, 5, shape, at::kLong);
        expect_same([&](const Inputs& in) { return kernels::embedding(in[0], ids); },
                    [&](const Inputs& in) { return at::embedding(in[0], ids); }, {values({5, width}, dtype)},
                    tolerance_of(dtype), c10::str(dtype, " ", shape, " of ", width));
      }
    }
  }
}

TEST(Embedding, RefusesIdsThatTheTableLacks) {
  const at::Tensor weight = at::ones({4, 2});
  EXPECT_THROW(kernels::embedding(weight, at::tensor({0, 4}, at::kLong)), c10::IndexError);
  EXPECT_THROW(kernels::embedding(weight, at::tensor({-1}, at::kLong)), c10::IndexError);
  EXPECT_THROW(kernels::embedding(weight, at::tensor({1}, at::kInt)), c10::Error);
}

// Rows of narrow sums would stop growing.
TEST(Embedding, AddsManyNarrowGradientsInFp32) {
  constexpr int64_t kTokens = 4096;
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor weight = at::zeros({3, 5}, dtype).requires_grad_();
    kernels::embedding(weight, at::ones({kTokens}, at::kLong)).sum().backward();
    EXPECT_EQ(weight.grad().scalar_type(), dtype);
    const at::Tensor expected = at::tensor({0.0, double{kTokens}, 0.0}, at::kDouble).unsqueeze(1).expand({3, 5});
    EXPECT_TRUE(at::equal(weight.grad().to(at::kDouble), expected)) << dtype << ": " << weight.grad();
  }
}

// Integers, whose sums bf16 and fp16 have exactly, in any order.
TEST(Embedding, GradientsOfEveryRowAreThoseOfItsTokens) {
  torch::manual_seed(5);
  const at::Tensor ids = at::randint(0, 9, {4, 10}, at::kLong), grad = at::randint(-3, 4, {4, 10, 33}, at::kFloat);
  const at::Tensor expected = at::zeros({9, 33}).index_add(0, ids.flatten(), grad.view({40, 33}));
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool create_graph : {false, true}) {
      const at::Tensor weight = at::zeros({9, 33}, dtype).requires_grad_();
      const at::Tensor actual = torch::autograd::grad({kernels::embedding(weight, ids)}, {weight}, {grad.to(dtype)},
                                                      /*retain_graph=*/false, create_graph)[0];
      EXPECT_EQ(actual.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(actual.to(at::kFloat), expected)) << dtype << (create_graph ? ", with a graph" : "");
    }
  }
}

// Its gradient is a sum of gradients, whose own gradient LibTorch knows.
TEST(Embedding, HasSecondDerivatives) {
  torch::manual_seed(3);
  const at::Tensor ids = at::tensor({1, 3, 1}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto second = [&](const Differentiable& function) {
      torch::manual_seed(4);
      const at::Tensor weight = values({4, 2}, dtype).requires_grad_();
      const at::Tensor loss = function({weight}).to(at::kFloat).pow(3).sum();
      const at::Tensor first =
          torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.to(at::kFloat).square().sum()}, {weight})[0];
    };
    const at::Tensor actual = second([&](const Inputs& in) { return kernels::embedding(in[0], ids); });
    const at::Tensor expected = second([&](const Inputs& in) { return at::embedding(in[0], ids); });
    EXPECT_LE(relative_difference(actual, expected), 3 * tolerance_of(dtype)) << dtype;
  }
}

// What lies in the slot after a backward, against the gradient that is returned without one.
void expect_same_in_slot(const Differentiable& function, const at::Tensor& weight_values, const std::string& label) {
  const at::Tensor weight = weight_values.clone().requires_grad_();
  const auto backward = [&] {
    const at::Tensor y = function({weight});
    y.backward(at::linspace(-1, 1, y.numel(), at::kFloat).cos().view(y.sizes()).to(y.dtype()));
  };
  backward();
  const at::Tensor gradient = weight.grad().to(at::kFloat);
  for (const bool adds : {false, true}) {
    for (const double scale : {1.0, 1.0 / 3}) {
      const at::Tensor target = at::full(weight.sizes(), 0.25F);
      const SlotOwner owner(weight, target, adds, scale);
      weight.mutable_grad().reset();
      backward();
      EXPECT_LE(relative_difference(target, gradient * scale + (adds ? 0.25 : 0)), tolerance_of(weight.scalar_type()))
          << label << (adds ? ", added" : "") << ", scale " << scale;
      EXPECT_EQ(weight.grad().count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST(GradientSlot, IsFilledByLinearAndEmbedding) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 3, 64, 65, 200}) {
      for (const int64_t width : {16, 48, 20}) {
        const at::Tensor x = values({2, tokens, width}, dtype), ids = at::randint(0, 30, {2, tokens}, at::kLong);
        const std::string label = c10::str(dtype, ", ", tokens, " tokens of ", width);
        expect_same_in_slot([&](const Inputs& in) { return kernels::linear(x, in[0]); }, values({30, width}, dtype),
                            "linear, " + label);
        expect_same_in_slot([&](const Inputs& in) { return kernels::embedding(in[0], ids); },
                            values({30, width}, dtype), "embedding, " + label);
      }
    }
  }
  // A gradient of several pieces.
  const at::Tensor x = values({100, 512}, at::kFloat);
  expect_same_in_slot([&](const Inputs& in) { return kernels::linear(x, in[0]); }, values({700, 512}, at::kFloat),
                      "pieces");
}

}  // namespace
}  // namespace fsdp::kernels::embedding_test
