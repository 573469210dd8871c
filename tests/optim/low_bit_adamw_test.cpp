// AdamW with 8-bit moments: its codes, its updates against a search through all fractions, and its losses; and the same
// with weights of 24 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "fsdp/fsdp.h"
#include "fsdp/optim/flat_parameters.h"
#include "kernels/flat/adamw.h"
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
    // One by one: compilers differ in the order of arguments, and each draws numbers.
    const torch::nn::Linear first(24, 40), second(40, 40), third(40, 10);
    return std::make_shared<torch::nn::Sequential>(first, torch::nn::Tanh(), second, torch::nn::Tanh(), third);
  });
}

// The moments of a leaf as codes and scales of blocks, the last of which may be short.
struct CodedByOperators {
  CodedByOperators(int64_t numel, BlockCode code, CodeSign sign)
      : coder(code, sign, torch::kCPU),
        codes(torch::zeros({numel}, torch::kByte)),
        scales(torch::zeros({(numel + kCodeBlock - 1) / kCodeBlock})) {}

  torch::Tensor decode() {
    torch::Tensor moment = torch::empty({codes.numel()});
    for_blocks([&](const torch::Tensor& some, const torch::Tensor& scale, const auto& range) {
      range(moment).copy_(coder.decode(some, scale).flatten());
    });
    return moment;
  }
  void encode(const torch::Tensor& moment) {
    for_blocks([&](const torch::Tensor& some, const torch::Tensor& scale, const auto& range) {
      coder.encode(range(moment).view({1, -1}), some, scale);
    });
  }
  template <class Body>
  void for_blocks(const Body& body) {
    for (int64_t block = 0; block < scales.numel(); ++block) {
      const int64_t begin = block * kCodeBlock, end = std::min(begin + kCodeBlock, codes.numel());
      const auto range = [&](const torch::Tensor& tensor) { return tensor.slice(0, begin, end); };
      body(range(codes).view({1, -1}), scales.slice(0, block, block + 1), range);
    }
  }

  BlockCoder coder;
  torch::Tensor codes, scales;
};

// What the one pass does is what LibTorch's operators say.
TEST(LowBitAdamW, HasTheBitsOfOperatorsOnItsBlocks) {
  const AdamWOptions options{.lr = 0.01, .weight_decay = 0.1};
  for (const BlockCode code : kCodes) {
    const int64_t numel = 70 * kCodeBlock + 9;
    const torch::Tensor leaf = torch::randn({numel}, generator(6)).requires_grad_();
    torch::Tensor weight = leaf.detach().clone();
    CodedByOperators first(numel, code, CodeSign::kSigned), second(numel, code, CodeSign::kUnsigned);
    LowBitAdamW optimizer(Tensors{leaf}, options, code);
    for (int step = 1; step <= 3; ++step) {
      torch::Tensor gradient = torch::randn({numel}, generator(60 + static_cast<uint64_t>(step)));
      gradient.slice(0, 0, 2 * kCodeBlock).mul_(1e-15);
      gradient.slice(0, 2 * kCodeBlock, 3 * kCodeBlock).zero_();
      leaf.mutable_grad() = gradient;
      optimizer.step();
      const torch::Tensor m = first.decode(), v = second.decode();
      kernels::adamw_step(weight, gradient, m, v, {},
                          {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay, step});
      first.encode(m);
      second.encode(v);
    }
    EXPECT_TRUE(torch::equal(leaf, weight));
    const auto states = optimizer.flat_parameters().states_of(leaf);
    const Tensors expected = {first.codes, first.scales, second.codes, second.scales};
    ASSERT_EQ(states.size(), expected.size());
    for (size_t i = 0; i < states.size(); ++i) EXPECT_TRUE(torch::equal(states[i].tensor, expected[i])) << i;
  }
}

void train_on_whole_gradients(torch::nn::Sequential& net, const AdamWOptions& options) {
  LowBitAdamW optimizer(parameters(*net), options);
  const auto leaves = parameters(*net);
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      const LocalRange range = local_range(leaves[i]);
      const torch::Tensor whole =
          torch::randn(logical_sizes(leaves[i]), generator(10 * static_cast<uint64_t>(step) + i));
      const torch::Tensor mine =
          whole.flatten().slice(0, range.begin, range.end).to(leaves[i].scalar_type(), false, true);
      leaves[i].mutable_grad() = mine.view(leaves[i].sizes());
    }
    optimizer.step();
  }
}

TEST(LowBitAdamW, HasTheSameBitsOnAnyNumberOfRanks) {
  for (const WeightDigits digits :
       {WeightDigits::kRounded, WeightDigits::kEightBits, WeightDigits::kEightBitsAtRandom}) {
    const AdamWOptions options{.lr = 0.01, .digits = digits};
    const auto make = [&] {
      auto net = make_low_bit_net();
      if (digits != WeightDigits::kRounded) (*net)->to(torch::kBFloat16);
      return net;
    };
    const auto alone = make();
    train_on_whole_gradients(*alone, options);
    const auto expected = (*alone)->parameters();
    for (const int size : {1, 2, 3}) {
      run_ranks(size, [&](const World& world) {
        const auto net = make();
        fully_shard(**net, Mesh::shard(world), {.layout = kInBlocks});
        train_on_whole_gradients(*net, options);
        const auto leaves = parameters(**net);
        for (size_t i = 0; i < leaves.size(); ++i) {
          const LocalRange range = local_range(leaves[i]);
          EXPECT_TRUE(torch::equal(leaves[i], expected[i].detach().flatten().slice(0, range.begin, range.end))) << i;
        }
      });
    }
  }
}

torch::Tensor main_weight_of(LowBitAdamW& optimizer, const torch::Tensor& leaf) {
  const torch::Tensor digits = optimizer.flat_parameters().states_of(leaf).at(4).tensor;
  const torch::Tensor upper = leaf.detach().view(torch::kShort).to(torch::kInt) * 65536;
  return (upper + digits.to(torch::kInt) * 256).view(torch::kFloat);
}

// 300 updates of a tenth of a bf16 weight's last digit, beside AdamW in fp32 on the same gradients. Such an update is
// three of the 24 bits' last digits: what is lost to the nearest may be half of one each time, always the same way; at
// random it comes back in the mean.
TEST(LowBitAdamW, WeightsOf24BitsLearnFromUpdatesBelowABf16Digit) {
  for (const WeightDigits digits : {WeightDigits::kEightBits, WeightDigits::kEightBitsAtRandom}) {
    AdamWOptions options{.lr = 1e-4, .beta2 = 0.95, .weight_decay = 0.1, .digits = digits};
    const torch::Tensor leaf = (torch::rand({999}, generator(8)) + 0.5).to(torch::kBFloat16).requires_grad_();
    const torch::Tensor wide = leaf.detach().to(torch::kFloat).requires_grad_(), initial = wide.detach().clone();
    LowBitAdamW optimizer(Tensors{leaf}, options);
    options.digits = WeightDigits::kRounded;
    AdamW reference(Tensors{wide}, options);
    for (uint64_t step = 0; step < 300; ++step) {
      leaf.mutable_grad() = (torch::randn({999}, generator(step)) * 0.1 + 1).to(torch::kBFloat16);
      wide.mutable_grad() = leaf.grad().to(torch::kFloat);
      optimizer.step();
      reference.step();
    }
    const torch::Tensor moved = (wide.detach() - initial).abs();
    const torch::Tensor distance = (main_weight_of(optimizer, leaf) - wide.detach()).abs();
    EXPECT_GT(moved.min().item<float>(), 0.02);
    const double half_a_digit = std::exp2(-7) / 256 / 2;
    EXPECT_LT(distance.max().item<float>(), 300 * half_a_digit * (digits == WeightDigits::kEightBits ? 1 : 0.25));
    std::printf("farthest from fp32 AdamW: %.2g of a way of %.2g\n", distance.max().item<float>(),
                moved.max().item<float>());
    EXPECT_EQ(optimizer.state_bytes(), 3 * 999 + 8 * 4);
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
    EXPECT_NEAR(dynamic, wide, 0.05 * wide);
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
  EXPECT_THAT([&] { LowBitAdamW(leaves, {.digits = WeightDigits::kCompensated}); },
              ThrowsMessage<Error>(HasSubstr("got WeightDigits::kCompensated, expected kRounded")));
  EXPECT_THAT([&] { LowBitAdamW(leaves, {.digits = WeightDigits::kEightBits}); },
              ThrowsMessage<Error>(HasSubstr("got dtype Float, expected bf16")));
  EXPECT_THAT([&] { AdamW(leaves, {.digits = WeightDigits::kEightBits}); },
              ThrowsMessage<Error>(HasSubstr("Take LowBitAdamW")));
  const Tensors narrow{torch::ones({3}, torch::dtype(torch::kBFloat16).requires_grad(true))};
  EXPECT_THAT([&] { LowBitAdamW(narrow, AdamWOptions{}); },
              ThrowsMessage<Error>(HasSubstr("LowBitAdamW with WeightDigits::kEightBits")));
  const Tensors wide{torch::ones({3}, torch::dtype(torch::kDouble).requires_grad(true))};
  EXPECT_THAT([&] { LowBitAdamW(wide, AdamWOptions{}); }, ThrowsMessage<Error>(HasSubstr("expected fp32")));
}

}  // namespace
}  // namespace fsdp
