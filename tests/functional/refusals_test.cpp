// What a ShardedStep refuses, and in which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/fsdp.h"
#include "fsdp/functional/sharded_step.h"
#include "tests/support/ranks.h"

namespace fsdp::functional::refusals_test {
namespace {

using fsdp::testing::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

using Tensors = std::vector<torch::Tensor>;

template <class Function>
void expect_refusal(const Function& function, const std::string& text) {
  EXPECT_THAT(function,
              Throws<Error>(AllOf(Property(&Error::code, ErrorCode::kUsage), Property(&Error::what, HasSubstr(text)))));
}

Mesh alone() { return Mesh::shard(comm::connect_alone()); }

torch::Tensor leaf(const std::vector<int64_t>& sizes) { return torch::ones(sizes, torch::requires_grad()); }

void expect_list_refusal(const Tensors& tensors, const std::string& text) {
  expect_refusal([&] { ShardedStep(alone(), tensors); }, "[ShardedStep] " + text);
}

TEST(ShardedStepRefusals, TensorsThatCannotBeSharded) {
  const torch::Tensor good = leaf({3});
  expect_list_refusal({}, "the list has no tensors, expected at least one.");
  expect_list_refusal({good, {}}, "tensor 1 is undefined.");
  expect_list_refusal({good, torch::ones({3}).to_sparse()}, "tensor 1: got layout Sparse, expected a dense tensor.");
  expect_list_refusal({good, torch::ones({3}, at::kMeta)}, "tensor 1: got device meta, expected cpu.");
  expect_list_refusal({good, torch::ones({3}, at::kLong)}, "tensor 1: got dtype Long, expected Float,");
  expect_list_refusal({good, good * 2}, "tensor 1 is computed from other tensors.");
  expect_list_refusal({good, torch::ones({1}).expand({3})}, "tensor 1: got strides [0], where elements share memory.");
  expect_list_refusal({good, leaf({2}), good}, "tensor 2 has the memory of tensor 0.");
  expect_list_refusal({good, leaf({2}), good.detach().view({3, 1})}, "tensor 2 has the memory of tensor 0.");
}

TEST(ShardedStepRefusals, ParametersOfAShardedModule) {
  const Mesh mesh = alone();
  torch::nn::Linear layer(3, 3);
  const Unit unit = fully_shard(*layer, mesh);
  for (const torch::Tensor& tensor : {layer->weight, parameters(*layer)[0]}) {
    expect_refusal(
        [&] {
          ShardedStep(mesh, {leaf({3}), tensor});
        },
        "[ShardedStep] tensor 1 belongs to a module that was sharded by fully_shard().");
  }
}

TEST(ShardedStepRefusals, OptionsOutOfRange) {
  const Tensors tensors = {leaf({3})};
  const auto with = [&](ShardedStepOptions options) {
    return [&, options] { ShardedStep(alone(), tensors, options); };
  };
  expect_refusal(with({.group_bytes = 0}), "[ShardedStep] group_bytes: got 0, expected at least 1");
  expect_refusal(with({.reduce = at::kLong}), "[ShardedStep] reduce: got dtype Long, expected Float,");
  expect_refusal(with({.main = at::kInt}), "[ShardedStep] main: got dtype Int, expected Float,");
  World two;
  two.size = 2;
  expect_refusal(
      [&] {
        ShardedStep(Mesh(two, {{"replicate", 2}}), tensors);
      },
      "[ShardedStep] mesh replicate=2: it has no axis 'shard'.");
}

TEST(ShardedStepRefusals, GradientsThatDoNotFit) {
  ShardedStep step(alone(), {leaf({3}), leaf({2, 3})});
  const torch::Tensor first = torch::ones({3});
  const auto refusal = [&](const Tensors& gradients, const std::string& text) {
    expect_refusal([&] { step.reduce_gradients(gradients); }, "[reduce_gradients] " + text);
    EXPECT_FALSE(step.slices()[0].grad().defined());
  };
  refusal({first}, "got 1 gradients, expected 2: one for each tensor, undefined where there is none.");
  refusal({first, torch::ones({3, 2})}, "tensor 1: got a gradient of sizes [3, 2], expected [2, 3].");
  refusal({first, torch::ones({2, 3}).to_sparse()}, "tensor 1: got a gradient of layout Sparse, expected a dense one.");
  refusal({first, torch::ones({2, 3}, at::kLong)}, "tensor 1: got a gradient of dtype Long, expected Float,");
  refusal({first, torch::ones({2, 3}, at::kMeta)}, "tensor 1: got a gradient on meta, expected cpu.");
}

TEST(ShardedStepRefusals, ARefusedGradientStaysWhereItIs) {
  const torch::Tensor table = leaf({4, 2});
  const torch::Tensor other = leaf({2});
  ShardedStep step(alone(), {other, table});
  (torch::embedding(table, torch::tensor({1, 2}), -1, false, /*sparse=*/true) * other).sum().backward();
  expect_refusal([&] { step.reduce_gradients(); }, "tensor 1: got a gradient of layout Sparse");
  EXPECT_TRUE(table.grad().defined() && other.grad().defined());
}

TEST(ShardedStepRefusals, SlicesWithAGradientOfAnotherKind) {
  ShardedStep step(alone(), {leaf({3})});
  step.slices()[0].mutable_grad() = torch::ones({4}, at::kDouble);
  expect_refusal([&] { step.reduce_gradients({torch::ones({3})}); },
                 "[reduce_gradients] slice 0: its .grad has sizes [4] and dtype Double, expected [4] and Float.");
  expect_refusal([&] { step.clip_grad_norm(0); }, "[clip_grad_norm] max_norm: got 0, expected a number above 0.");
}

// ---- ranks that differ

void expect_disagreement(const std::function<ShardedStep(const Mesh& mesh, bool differs)>& make,
                         const std::string& text) {
  run_ranks(3, [&](const World& world) {
    expect_refusal([&] { make(Mesh::shard(world), world.rank > 0); }, "[ShardedStep] rank 1 " + text);
  });
}

TEST(ShardedStepRefusals, RanksWithOtherLists) {
  const std::string text = "has other tensors or options than rank 0.";
  const auto with = [&](const Tensors& others) {
    expect_disagreement(
        [&](const Mesh& mesh, bool differs) {
          return ShardedStep(mesh, differs ? others : Tensors{torch::zeros({2, 3}), torch::zeros({4})});
        },
        text);
  };
  with({torch::zeros({4}), torch::zeros({2, 3})});
  with({torch::zeros({3, 2}), torch::zeros({4})});
  with({torch::zeros({2, 3}), torch::zeros({4}, at::kHalf)});
  with({torch::zeros({2, 3}), torch::zeros({4}), torch::zeros({0})});
}

TEST(ShardedStepRefusals, RanksWithOtherOptions) {
  for (const ShardedStepOptions& others :
       {ShardedStepOptions{.group_bytes = 7}, ShardedStepOptions{.slicing = Slicing::kByTensor},
        ShardedStepOptions{.reduce = at::kBFloat16}, ShardedStepOptions{.main = at::kDouble}}) {
    expect_disagreement(
        [&](const Mesh& mesh, bool differs) {
          return ShardedStep(mesh, {torch::zeros({5})}, differs ? others : ShardedStepOptions());
        },
        "has other tensors or options than rank 0.");
  }
}

TEST(ShardedStepRefusals, RanksThatStartFromOtherValues) {
  expect_disagreement(
      [](const Mesh& mesh, bool differs) { return ShardedStep(mesh, {torch::full({5}, differs ? 1.0 : 2.0)}); },
      "starts from other values than rank 0.");
}

}  // namespace
}  // namespace fsdp::functional::refusals_test
