// AdamW with 8-bit moments: its codes, its updates against a search through all fractions, and its losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using testing::generator;
using ::testing::HasSubstr;
using testing::make_seeded;
using testing::run_ranks;
using ::testing::ThrowsMessage;

using Tensors = std::vector<torch::Tensor>;

constexpr BlockCode kCodes[] = {BlockCode::kDynamic, BlockCode::kLinear};
constexpr LayoutOptions kInBlocks{.granularity = layout::Granularity::kBlock, .block = kCodeBlock};

TEST(BlockCode, FractionsAreAscendingAndDense) {
  for (const BlockCode code : kCodes) {
    for (const CodeSign sign : {CodeSign::kSigned, CodeSign::kUnsigned}) {
      const torch::Tensor table = code_table(code, sign);
      ASSERT_EQ(table.numel(), 256);
      EXPECT_EQ(table[255].item<float>(), 1);
      const bool repeats = code == BlockCode::kLinear && sign == CodeSign::kSigned;  // -1
      EXPECT_GE(table.diff().min().item<float>(), repeats ? 0 : 1e-9);
      EXPECT_EQ(table.min().item<float>() < 0, sign == CodeSign::kSigned);
    }
  }
  // By hand: decade i of 7 has 2^i fractions of each sign, in the middles of equal parts.
  const torch::Tensor dynamic = code_table(BlockCode::kDynamic, CodeSign::kSigned);
  EXPECT_FLOAT_EQ(dynamic[128].item<float>(), 0.55e-6F);
  EXPECT_FLOAT_EQ(dynamic[129].item<float>(), 0.325e-5F);
  EXPECT_FLOAT_EQ(dynamic[254].item<float>(), static_cast<float>(1 - 0.9 / 64 / 2));
  EXPECT_EQ(dynamic[127].item<float>(), 0);
  EXPECT_GT(code_table(BlockCode::kLinear, CodeSign::kUnsigned)[0].item<float>(), 0);
}

// The nearest of `table`, by looking at all.
double nearest(double fraction, const torch::Tensor& table) {
  const torch::Tensor distances = (table.to(torch::kDouble) - fraction).abs();
  return table[distances.argmin()].item<double>();
}

// What a moment is after it was kept in 8 bits.
torch::Tensor kept(const torch::Tensor& moment, const torch::Tensor& table) {
  torch::Tensor result = moment.clone();
  for (int64_t begin = 0; begin < moment.numel(); begin += kCodeBlock) {
    torch::Tensor block = result.slice(0, begin, std::min(begin + kCodeBlock, moment.numel()));
    const double scale = block.abs().max().item<double>();
    for (int64_t i = 0; i < block.numel(); ++i) {
      block[i] = scale > 0 ? nearest(block[i].item<double>() / scale, table) * scale : 0.0;
    }
  }
  return result;
}

TEST(LowBitAdamW, FollowsAdamWOnRoundedMoments) {
  const AdamWOptions options{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1};
  for (const BlockCode code : kCodes) {
    const torch::Tensor leaf = torch::randn({3 * 256 + 9}, generator(4)).requires_grad_();
    torch::Tensor weight = leaf.detach().to(torch::kDouble).clone();
    torch::Tensor first = torch::zeros_like(weight), second = torch::zeros_like(weight);
    LowBitAdamW optimizer(Tensors{leaf}, options, code);
    for (int step = 1; step <= 4; ++step) {
      const torch::Tensor gradient = torch::randn({leaf.numel()}, generator(50 + static_cast<uint64_t>(step)));
      leaf.mutable_grad() = gradient;
      optimizer.step();
      const torch::Tensor wide = gradient.to(torch::kDouble);
      first = options.beta1 * first + (1 - options.beta1) * wide;
      second = options.beta2 * second + (1 - options.beta2) * wide * wide;
      const torch::Tensor size = (second / (1 - std::pow(options.beta2, step))).sqrt() + options.eps;
      weight = weight * (1 - options.lr * options.weight_decay) -
               options.lr * (first / (1 - std::pow(options.beta1, step))) / size;
      first = kept(first, code_table(code, CodeSign::kSigned));
      second = kept(second, code_table(code, CodeSign::kUnsigned));
    }
    // Where a moment lies between two fractions, a rounding decides: a few elements may differ by a step of the code.
    const torch::Tensor distance = (leaf.detach().to(torch::kDouble) - weight).abs();
    EXPECT_LT(distance.median().item<double>(), 1e-5);
    EXPECT_LT((distance > 1e-4).to(torch::kDouble).mean().item<double>(), 0.02);
    EXPECT_EQ(optimizer.state_bytes(), 2 * leaf.numel() + 2 * 4 * 4);  // four blocks
  }
}

std::shared_ptr<torch::nn::Sequential> make_low_bit_net() {
  return make_seeded(31, [] {
    return std::make_shared<torch::nn::Sequential>(torch::nn::Linear(24, 40), torch::nn::Tanh(),
                                                   torch::nn::Linear(40, 40), torch::nn::Tanh(),
                                                   torch::nn::Linear(40, 10));
  });
}

TEST(LowBitAdamW, HasTheSameBitsOnAnyNumberOfRanks) {
  const auto train = [](torch::nn::Sequential& net) {
    LowBitAdamW optimizer(parameters(*net), {.lr = 0.01});
    const auto leaves = parameters(*net);
    for (int step = 0; step < 4; ++step) {
      for (size_t i = 0; i < leaves.size(); ++i) {
        const LocalRange range = local_range(leaves[i]);
        const torch::Tensor whole =
            torch::randn(logical_sizes(leaves[i]), generator(10 * static_cast<uint64_t>(step) + i));
        leaves[i].mutable_grad() = whole.flatten().slice(0, range.begin, range.end).clone().view(leaves[i].sizes());
      }
      optimizer.step();
    }
  };
  const auto alone = make_low_bit_net();
  train(*alone);
  const auto expected = (*alone)->parameters();
  for (const int size : {2, 3}) {
    run_ranks(size, [&](const World& world) {
      const auto net = make_low_bit_net();
      fully_shard(**net, Mesh::shard(world), {.layout = kInBlocks});
      train(*net);
      const auto leaves = parameters(**net);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const LocalRange range = local_range(leaves[i]);
        EXPECT_TRUE(torch::equal(leaves[i], expected[i].detach().flatten().slice(0, range.begin, range.end))) << i;
      }
    });
  }
}

// A regression whose loss falls by some decades.
TEST(LowBitAdamW, LossesFollowThoseOfFp32Moments) {
  run_ranks(2, [](const World& world) {
    const auto train = [&](const auto& make) {
      const auto net = make_low_bit_net();
      fully_shard(**net, Mesh::shard(world), {.layout = kInBlocks});
      auto optimizer = make(parameters(**net));
      const torch::Tensor x = torch::randn({64, 24}, generator(77));
      const torch::Tensor y = torch::tanh(x.matmul(torch::randn({24, 10}, generator(78)) / 3));
      double loss_at_end = 0;
      for (int step = 0; step < 80; ++step) {
        const torch::Tensor loss = ((*net)->forward(x) - y).square().mean();
        loss.backward();
        optimizer.step();
        zero_grad(**net);
        loss_at_end = loss.template item<double>();
      }
      return loss_at_end;
    };
    const AdamWOptions options{.lr = 2e-3};
    const double wide = train([&](Tensors leaves) { return AdamW(std::move(leaves), options); });
    const double dynamic = train([&](Tensors leaves) { return LowBitAdamW(std::move(leaves), options); });
    std::printf("loss with moments in fp32 %.6f, in 8 bits %.6f\n", wide, dynamic);
    EXPECT_NEAR(dynamic, wide, 0.03 * wide);
  });
}

TEST(LowBitAdamW, RefusesByNameWhatItCannotUpdate) {
  run_ranks(3, [](const World& world) {
    const auto net = make_low_bit_net();
    fully_shard(**net, Mesh::shard(world));
    EXPECT_THAT([&] { LowBitAdamW(parameters(**net), AdamWOptions{}); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr("weight' of unit"), HasSubstr("a block of 256"),
                                                      HasSubstr("Granularity::kBlock"))));
  });
  const Tensors leaves{torch::ones({3}, torch::requires_grad())};
  EXPECT_THAT([&] { LowBitAdamW(leaves, {.exp_avg_dtype = torch::kBFloat16}); },
              ThrowsMessage<Error>(HasSubstr("moments have 8 bits")));
  const Tensors wide{torch::ones({3}, torch::dtype(torch::kDouble).requires_grad(true))};
  EXPECT_THAT([&] { LowBitAdamW(wide, AdamWOptions{}); }, ThrowsMessage<Error>(HasSubstr("expected fp32")));
}

}  // namespace
}  // namespace fsdp
