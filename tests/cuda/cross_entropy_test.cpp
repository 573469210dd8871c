#include "kernels/operators/cross_entropy.h"

#include <vector>

#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::cross_entropy_test {
namespace {

const std::vector<LossTerms> kTerms = {{}, {1e-2, 0}, {0, 0.1}, {1e-3, 0.2}};

TEST(CudaCrossEntropy, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      for (const LossTerms& terms : kTerms) {
        for (const auto& [rows, vocab] :
             std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 37}, {70, 512}, {33, 10001}, {9, 128256}, {0, 8}}) {
          at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
          if (rows > 2) targets[1] = kIgnoreIndex;
          expect_as_on_cpu([&](const Inputs& in) { return cross_entropy(in[0], in[1], reduction, terms); },
                           {4 * values({rows, vocab}, dtype), targets}, dtype == at::kFloat ? 1e-5 : 1.2e-2,
                           c10::str(dtype, ", ", rows, " x ", vocab, ", z ", terms.z_loss));
        }
      }
    }
  }
}

TEST(CudaCrossEntropy, TakesViewsAndInfinities) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  const at::Tensor targets = at::tensor({0, 3, 7}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_as_on_cpu(
        [&](const Inputs& in) {
          return cross_entropy(shifted(in[0], {3, 8}), in[1]);
        },
        {values({25}, dtype), targets}, tolerance_of(dtype), c10::str(dtype, " shifted"));
    at::Tensor logits = 50 * values({3, 8}, dtype);
    logits.select(1, 5).fill_(-INFINITY);
    expect_as_on_cpu([&](const Inputs& in) { return cross_entropy(in[0], in[1]); }, {logits, targets},
                     tolerance_of(dtype), c10::str(dtype, " with -inf"));
  }
}

TEST(CudaCrossEntropy, WithoutValidTargetsIsZero) {
  FSDP_NEEDS_GPU();
  const at::Tensor logits = at::ones({3, 5}, kGpu).requires_grad_();
  const at::Tensor loss = cross_entropy(logits, at::full({3}, kIgnoreIndex, at::TensorOptions(kGpu).dtype(at::kLong)));
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(logits.grad().count_nonzero().item<int64_t>(), 0);
}

TEST(CudaCrossEntropy, TargetsOutsideTheVocabularyAreNotANumber) {
  FSDP_NEEDS_GPU();
  for (const int64_t bad : {5, -1, -101}) {
    const at::Tensor logits = at::ones({3, 5}, kGpu).requires_grad_();
    const at::Tensor loss = cross_entropy(logits, at::tensor({int64_t{2}, bad, int64_t{4}}).to(kGpu));
    loss.backward();
    EXPECT_TRUE(std::isnan(loss.item<float>()));
    EXPECT_TRUE(at::equal(logits.grad().isnan().any(1).cpu(), torch::tensor({false, true, false})));
  }
  EXPECT_THROW(cross_entropy(at::ones({2, 3}, kGpu), at::zeros({2}, at::kLong)), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::cross_entropy_test
