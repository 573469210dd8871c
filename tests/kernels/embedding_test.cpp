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
