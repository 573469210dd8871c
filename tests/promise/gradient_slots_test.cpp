// Gradients that operators write straight into the buffers they are reduced from: the same as those that autograd
// hands over, in every case in which it is not as simple as that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "kernels/base/gradient_slot.h"
#include "kernels/operators/embedding.h"
#include "kernels/products/linear.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::gradient_slots_test {
namespace {

namespace nn = torch::nn;
using testing::expect_same_gradients;
using testing::kModelSeed;
using testing::make_seeded;
using testing::run_ranks;

constexpr int kRanks = 3;
constexpr int64_t kRows = 12;

// Reads a weight where nobody sees it.
struct HiddenScale : torch::autograd::Function<HiddenScale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1].sum(), (grads[0] * saved[0]).sum().expand_as(saved[1])};
  }
};

enum class Use { kOnce, kTied, kRecomputed, kHidden };

struct Net : nn::Module {
  Net() {
    table = register_parameter("table", torch::randn({24, 16}));
    up = register_parameter("up", torch::randn({32, 16}) * 0.3);
    down = register_parameter("down", torch::randn({16, 32}) * 0.3);
    head = register_parameter("head", torch::randn({24, 16}) * 0.3);
  }

  torch::Tensor loss(const torch::Tensor& ids, Use use) {
    torch::Tensor x = kernels::embedding(table, ids);
    const auto block = [this](const torch::Tensor& in) {
      return in + kernels::linear(torch::tanh(kernels::linear(in, up)), down);
    };
    x = use == Use::kRecomputed ? recompute(block, x) : block(x);
    if (use == Use::kHidden) x = HiddenScale::apply(x, up);
    return kernels::linear(x, use == Use::kTied ? table : head).square().mean();
  }

  torch::Tensor table, up, down, head;
};

torch::Tensor ids_of(int step) {
  return torch::randint(0, 24, {kRanks * kRows}, testing::generator(static_cast<uint64_t>(step)), torch::kLong);
}

// A sharded model and a plain one that sees the rows of all ranks.
class Pair {
 public:
  explicit Pair(const World& world, const ShardOptions& options = {})
      : sharded(make_seeded(kModelSeed, [] { return std::make_shared<Net>(); })),
        plain(make_seeded(kModelSeed, [] { return std::make_shared<Net>(); })),
        unit(fully_shard(*sharded, Mesh::shard(world), options)),
        world_(world) {
    parameters(*sharded);  // as for an optimizer
  }

  torch::Tensor sharded_loss(int step, Use use) {
    return sharded->loss(ids_of(step).narrow(0, world_.rank * kRows, kRows), use);
  }
  void backward(int step, Use use) {
    sharded_loss(step, use).backward();
    plain->loss(ids_of(step), use).backward();
  }
  int64_t in_place() const { return unit.counters().gradients_in_place; }

  std::shared_ptr<Net> sharded, plain;
  Unit unit;

 private:
  World world_;
};

TEST(GradientSlots, TakeTheGradientsOfWeightsThatAreUsedOnce) {
  for (const Strategy strategy : {Strategy::kOptimGradsParams, Strategy::kNoShard}) {
    run_ranks(kRanks, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      Pair pair(world, options);
      pair.backward(1, Use::kOnce);
      EXPECT_EQ(pair.in_place(), 4);
      expect_same_gradients(*pair.sharded, *pair.plain);
      pair.backward(2, Use::kOnce);  // added to those of the first
      EXPECT_EQ(pair.in_place(), 8);
      expect_same_gradients(*pair.sharded, *pair.plain);
    });
  }
}

TEST(GradientSlots, AccumulateOverMicrobatches) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    {
      const NoSync no_sync(pair.unit);
      pair.backward(1, Use::kOnce);
      pair.backward(2, Use::kOnce);
    }
    pair.backward(3, Use::kOnce);
    EXPECT_EQ(pair.in_place(), 12);
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, AreNotForWeightsThatGetSeveralGradients) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    pair.backward(1, Use::kTied);
    EXPECT_EQ(pair.in_place(), 2);  // up and down
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, WorkInRecomputedRegions) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    pair.backward(1, Use::kRecomputed);
    EXPECT_EQ(pair.in_place(), 4);
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, KeepWhatAnUnseenUseAdds) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    pair.backward(1, Use::kHidden);
    expect_same_gradients(*pair.sharded, *pair.plain);
    pair.backward(2, Use::kHidden);
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, LeaveHooksOfTheProgramTheirGradients) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    for (Net* net : {pair.sharded.get(), pair.plain.get()}) {
      net->up.register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
    }
    pair.backward(1, Use::kOnce);
    EXPECT_EQ(pair.in_place(), 3);
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

// Takes its slot, writes a part of it, and has no memory for the rest.
struct NoMemoryForGradient : torch::autograd::Function<NoMemoryForGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({weight});
    return x.matmul(weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    if (const auto slot = kernels::find_gradient_slot(context->get_saved_variables()[0])) slot->target.fill_(1e6);
    throw std::bad_alloc();
  }
};

TEST(GradientSlots, LeaveNothingWhereTheirOperatorThrows) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor rows = torch::ones({2, 16});
      touch({pair.sharded->head});  // as operators of the library are seen
      EXPECT_THROW(NoMemoryForGradient::apply(rows, pair.sharded->head).sum().backward(), std::bad_alloc);
      pair.sharded->zero_grad();
      pair.plain->zero_grad();
      pair.backward(step, Use::kOnce);
      expect_same_gradients(*pair.sharded, *pair.plain);
    }
  });
}

TEST(GradientSlots, AreNotForGradientsThatAreAskedFor) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    const torch::Tensor loss = pair.sharded_loss(1, Use::kOnce);
    const torch::Tensor asked = torch::autograd::grad({loss}, {pair.sharded->up})[0];
    const torch::Tensor kept = asked.clone();
    EXPECT_EQ(pair.in_place(), 0);
    pair.backward(2, Use::kOnce);
    EXPECT_TRUE(torch::equal(asked, kept));
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, AreRightWhenAGraphIsUsedTwice) {
  run_ranks(kRanks, [](const World& world) {
    Pair pair(world);
    const torch::Tensor sharded_loss = pair.sharded_loss(1, Use::kOnce);
    const torch::Tensor plain_loss = pair.plain->loss(ids_of(1), Use::kOnce);
    for (const bool keep_graph : {true, false}) {
      sharded_loss.backward({}, keep_graph);
      plain_loss.backward({}, keep_graph);
    }
    expect_same_gradients(*pair.sharded, *pair.plain);
  });
}

TEST(GradientSlots, TakeBf16GradientsInFp32) {
  run_ranks(kRanks, [](const World& world) {
    ShardOptions options;
    options.precision = Precision::bf16();
    Pair pair(world, options);
    pair.backward(1, Use::kOnce);
    EXPECT_EQ(pair.in_place(), 4);
    expect_same_gradients(*pair.sharded, *pair.plain, 0.1);
  });
}

}  // namespace
}  // namespace fsdp::gradient_slots_test
