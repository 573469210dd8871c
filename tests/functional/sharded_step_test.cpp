// Functional ZeRO-2 against the same training on one process and against plain data parallelism.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <random>

#include "fsdp/fsdp.h"
#include "fsdp/functional/grouping.h"
#include "fsdp/functional/sharded_step.h"
#include "tests/support/ranks.h"

namespace fsdp::functional::sharded_step_test {
namespace {

using fsdp::testing::run_ranks;

using Tensors = std::vector<torch::Tensor>;
using Shapes = std::vector<std::vector<int64_t>>;

constexpr double kLearningRate = 0.01;

// 0-dim, empty, one element, odd, fewer elements than ranks, and some that are larger than a group.
const Shapes kAwkward = {{}, {0}, {1}, {7}, {2, 3}, {3, 0, 2}, {3}, {5, 1}, {33}, {4, 4, 4}, {16}, {2, 129}};

torch::Tensor values(uint64_t seed, const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
  return torch::randn(sizes, fsdp::testing::generator(seed)).to(dtype);
}

// Leaves; every third matrix is transposed, so that it is not contiguous.
Tensors make_tensors(uint64_t seed, const Shapes& shapes, at::ScalarType dtype = at::kFloat) {
  Tensors tensors;
  for (size_t i = 0; i < shapes.size(); ++i) {
    torch::Tensor tensor = values(1000 * seed + i, shapes[i], dtype);
    if (shapes[i].size() == 2 && i % 3 == 1) tensor = tensor.t();
    tensors.push_back(tensor.requires_grad_());
  }
  return tensors;
}

void reset_gradients(const ShardedStep& step) {
  for (const torch::Tensor& slice : step.slices()) slice.mutable_grad().reset();
}

int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// ---- slices

// From the definition, with LibTorch's own padding and joining; fp32.
torch::Tensor expected_slice(const Tensors& tensors, Slicing slicing, int num_ranks, int rank) {
  Tensors parts;
  for (const torch::Tensor& tensor : tensors) {
    torch::Tensor flat = tensor.detach().flatten();
    if (slicing == Slicing::kByTensor) {
      flat = torch::constant_pad_nd(flat, {0, round_up(flat.numel(), num_ranks) - flat.numel()});
      flat = flat.view({num_ranks, flat.numel() / num_ranks})[rank];
    }
    parts.push_back(flat);
  }
  torch::Tensor joined = torch::cat(parts);
  if (slicing == Slicing::kByTensor) {
    return torch::constant_pad_nd(joined, {0, round_up(joined.numel(), 4) - joined.numel()});
  }
  const int64_t shard = round_up(round_up(joined.numel(), num_ranks) / num_ranks, 4);
  return torch::constant_pad_nd(joined, {0, shard * num_ranks - joined.numel()}).narrow(0, rank * shard, shard);
}

TEST(ShardedStep, SlicesAreWhatTheirNamesSay) {
  for (const int size : {1, 2, 3, 4}) {
    run_ranks(size, [](const World& world) {
      for (const Slicing slicing : {Slicing::kFlat, Slicing::kByTensor}) {
        const Tensors tensors = make_tensors(1, kAwkward);
        ShardedStep step(Mesh::shard(world), tensors, {.group_bytes = 1 << 20, .slicing = slicing});
        ASSERT_EQ(step.num_groups(), 1);
        const torch::Tensor slice = step.slices()[0];
        EXPECT_TRUE(slice.is_leaf() && slice.requires_grad() && slice.dim() == 1);
        EXPECT_TRUE(torch::equal(slice, expected_slice(tensors, slicing, world.size, world.rank)));
        const int64_t bytes = step.slice_bytes();
        EXPECT_EQ(bytes, 4 * slice.numel());
        step.reduce_gradients(tensors);
        EXPECT_TRUE(torch::allclose(slice.grad(), slice));  // the mean of equal tensors, padding included
        EXPECT_EQ(step.slice_bytes(), 2 * bytes);
      }
    });
  }
}

TEST(ShardedStep, GroupsAndBytesFollowTheFormulas) {
  static constexpr int64_t kTensors = 10;
  static constexpr int64_t kNumel = 6;
  for (const int size : {1, 3, 4}) {
    run_ranks(size, [](const World& world) {
      for (const int64_t group_bytes : {16, 24, 48, 100, 1 << 20}) {
        for (const Slicing slicing : {Slicing::kFlat, Slicing::kByTensor}) {
          ShardedStep step(Mesh::shard(world), make_tensors(2, Shapes(kTensors, {kNumel})),
                           {.group_bytes = group_bytes, .slicing = slicing});
          const int64_t most = std::min(std::max<int64_t>(group_bytes / (4 * kNumel), 1), kTensors);
          EXPECT_EQ(step.num_groups(), (kTensors + most - 1) / most);
          int64_t bytes = 0;
          for (int64_t left = kTensors; left > 0; left -= most) {
            const int64_t count = std::min(left, most);
            const int64_t row = slicing == Slicing::kFlat ? round_up(count * kNumel, world.size) / world.size
                                                          : count * (round_up(kNumel, world.size) / world.size);
            bytes += 4 * round_up(row, 4);
          }
          EXPECT_EQ(step.slice_bytes(), bytes);
        }
      }
    });
  }
}

// ---- parity with one process

enum class Kind { kSgd, kAdamW, kAdagrad, kRmsprop, kOurAdamW, kOurSgd };
constexpr Kind kKinds[] = {Kind::kSgd, Kind::kAdamW, Kind::kAdagrad, Kind::kRmsprop, Kind::kOurAdamW, Kind::kOurSgd};

// Updates `tensors` when called. The counterpart of one of ours is torch::optim's.
std::function<void()> make_optimizer(Kind kind, const Tensors& tensors, bool counterpart) {
  const auto wrap = [](auto optimizer) { return [optimizer] { optimizer->step(); }; };
  switch (kind) {
    case Kind::kOurAdamW:
      if (!counterpart) return wrap(std::make_shared<AdamW>(tensors, AdamWOptions{.lr = kLearningRate}));
      [[fallthrough]];
    case Kind::kAdamW:
      return wrap(std::make_shared<torch::optim::AdamW>(tensors, torch::optim::AdamWOptions(kLearningRate)));
    case Kind::kOurSgd:
      if (!counterpart) return wrap(std::make_shared<SGD>(tensors, SGDOptions{.lr = kLearningRate, .momentum = 0.9}));
      [[fallthrough]];
    case Kind::kSgd:
      return wrap(std::make_shared<torch::optim::SGD>(tensors, torch::optim::SGDOptions(kLearningRate).momentum(0.9)));
    case Kind::kAdagrad:
      return wrap(std::make_shared<torch::optim::Adagrad>(tensors, torch::optim::AdagradOptions(kLearningRate)));
    default:
      return wrap(std::make_shared<torch::optim::RMSprop>(tensors, torch::optim::RMSpropOptions(kLearningRate)));
  }
}

struct Trial {
  uint64_t seed = 0;
  Shapes shapes = {};
  ShardedStepOptions options = {};
  Kind kind = Kind::kSgd;
  double max_norm = 0;  // 0: gradients are not clipped
  int missing = 0;      // of 10 gradients on a rank
  at::ScalarType dtype = at::kFloat;
  int num_steps = 3;

  std::string text() const {
    return c10::str("seed ", seed, ": ", shapes.size(), " tensors of ", dtype, ", groups of ", options.group_bytes,
                    options.slicing == Slicing::kFlat ? " bytes, flat" : " bytes, by tensor", ", optimizer ",
                    static_cast<int>(kind), ", max norm ", max_norm, ", ", missing, "0% missing");
  }
};

torch::Tensor gradient_of(const Trial& trial, const Tensors& tensors, int step, int rank, size_t i) {
  const uint64_t seed = ((trial.seed * 10 + static_cast<uint64_t>(step)) * 10 + static_cast<uint64_t>(rank)) * 1000 + i;
  if (static_cast<int>(std::mt19937(static_cast<unsigned>(seed))() % 10) < trial.missing) return {};
  return values(seed, tensors[i].sizes().vec(), trial.dtype);
}

Tensors gradients_of(const Trial& trial, const Tensors& tensors, int step, int rank) {
  Tensors gradients;
  for (size_t i = 0; i < tensors.size(); ++i) gradients.push_back(gradient_of(trial, tensors, step, rank, i));
  return gradients;
}

// The mean over ranks, in fp32, for each tensor; zeros where only other tensors of its group have a gradient.
Tensors mean_gradients(const Trial& trial, const Tensors& tensors, int step, int num_ranks) {
  Tensors means(tensors.size());
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Tensors gradients = gradients_of(trial, tensors, step, rank);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const torch::Tensor part = gradients[i].to(at::kFloat) * (1.0 / num_ranks);
      means[i] = means[i].defined() ? means[i] + part : part;
    }
  }
  std::vector<ListedTensor> list;
  for (const torch::Tensor& tensor : tensors) {
    list.push_back({tensor.numel(), static_cast<int64_t>(tensor.element_size()), 0});
  }
  for (const auto& group : group_by_size(list, trial.options.group_bytes)) {
    const bool any = std::any_of(group.begin(), group.end(), [&](size_t i) { return means[i].defined(); });
    for (const size_t i : group) {
      if (any && !means[i].defined()) means[i] = torch::zeros(tensors[i].sizes());
    }
  }
  return means;
}

// fp32 copies of the tensors, trained on one process; and the norms of their gradients.
std::pair<Tensors, std::vector<double>> train_alone(const Trial& trial, int num_ranks) {
  Tensors tensors;
  const Tensors start = make_tensors(trial.seed, trial.shapes, trial.dtype);
  for (const torch::Tensor& tensor : start) tensors.push_back(tensor.detach().to(at::kFloat).clone().requires_grad_());
  const auto update = make_optimizer(trial.kind, tensors, /*counterpart=*/true);
  std::vector<double> norms;
  for (int step = 0; step < trial.num_steps; ++step) {
    const Tensors means = mean_gradients(trial, start, step, num_ranks);
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].mutable_grad() = means[i];
    if (trial.max_norm > 0) norms.push_back(torch::nn::utils::clip_grad_norm_(tensors, trial.max_norm));
    update();
  }
  return {tensors, norms};
}

void expect_close(const Tensors& actual, const Tensors& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i].to(at::kFloat), expected[i], tolerance, tolerance)) << "tensor " << i;
  }
}

void expect_parity(const World& world, const Trial& trial) {
  SCOPED_TRACE(c10::str(trial.text(), ", rank ", world.rank, " of ", world.size));
  const auto [expected, norms] = train_alone(trial, world.size);
  const Tensors tensors = make_tensors(trial.seed, trial.shapes, trial.dtype);
  ShardedStep step(Mesh::shard(world), tensors, trial.options);
  const auto update = make_optimizer(trial.kind, step.slices(), /*counterpart=*/false);
  for (int n = 0; n < trial.num_steps; ++n) {
    step.reduce_gradients(gradients_of(trial, tensors, n, world.rank));
    if (trial.max_norm > 0) {
      const torch::Tensor norm = step.clip_grad_norm(trial.max_norm);
      EXPECT_EQ(norm.dim(), 0);
      EXPECT_EQ(norm.scalar_type(), at::kFloat);
      EXPECT_NEAR(norm.item<double>(), norms[static_cast<size_t>(n)], 1e-5 * norms[static_cast<size_t>(n)]);
    }
    update();
    reset_gradients(step);
    step.gather_updates();
  }
  expect_close(tensors, expected, trial.dtype == at::kFloat ? 1e-5 : 1.0 / 128);
}

class ShardedSteps : public ::testing::TestWithParam<int> {};

TEST_P(ShardedSteps, TrainAwkwardTensorsLikeOneProcess) {
  run_ranks(GetParam(), [](const World& world) {
    for (const Slicing slicing : {Slicing::kFlat, Slicing::kByTensor}) {
      for (const int64_t group_bytes : {16, 300, 1 << 20}) {
        for (const Kind kind : kKinds) {
          expect_parity(world, {1, kAwkward, {.group_bytes = group_bytes, .slicing = slicing}, kind});
        }
      }
    }
  });
}

TEST_P(ShardedSteps, ClipLikeTorch) {
  run_ranks(GetParam(), [](const World& world) {
    for (const Slicing slicing : {Slicing::kFlat, Slicing::kByTensor}) {
      for (const double max_norm : {1e-3, 5.0, 1e6}) {
        expect_parity(world, {2, kAwkward, {.group_bytes = 64, .slicing = slicing}, Kind::kSgd, max_norm});
      }
    }
  });
}

// To repeat a failure: FSDP_TEST_SEED=<seed of the message>.
TEST_P(ShardedSteps, TrainRandomListsLikeOneProcess) {
  const char* chosen = std::getenv("FSDP_TEST_SEED");
  const unsigned first =
      chosen != nullptr ? static_cast<unsigned>(std::stoul(chosen)) : std::random_device{}() % 100000;
  run_ranks(GetParam(), [&](const World& world) {
    for (unsigned seed = first; seed < first + (chosen != nullptr ? 1 : 24); ++seed) {
      std::mt19937 random(seed);
      Trial trial{seed};
      for (size_t left = 1 + random() % 20; left > 0; --left) {
        std::vector<int64_t> shape(random() % 4);
        for (int64_t& size : shape) size = random() % 8 == 0 ? random() % 40 : random() % 6;
        trial.shapes.push_back(shape);
      }
      trial.options.group_bytes = int64_t{16} << random() % 17;
      trial.options.slicing = random() % 2 == 0 ? Slicing::kFlat : Slicing::kByTensor;
      trial.kind = kKinds[random() % std::size(kKinds)];
      trial.max_norm = random() % 2 == 0 ? 0.5 : 0;
      trial.missing = static_cast<int>(random() % 3) * 4;
      if (random() % 3 == 0) {
        trial.dtype = at::kBFloat16;
        trial.options.main = at::kFloat;
        trial.options.reduce = at::kFloat;
      }
      expect_parity(world, trial);
    }
  });
}

// ---- parity with data parallelism

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return outlet(torch::tanh(inlet(x)) * gain); }
  torch::nn::Linear inlet = register_module("inlet", torch::nn::Linear(5, 7));
  torch::Tensor gain = register_parameter("gain", torch::ones({}));
  torch::nn::Linear outlet = register_module("outlet", torch::nn::Linear(7, 3));
  torch::Tensor unused = register_parameter("unused", torch::ones({4}));
};

std::shared_ptr<Net> make_net() {
  return fsdp::testing::make_seeded(11, [] { return std::make_shared<Net>(); });
}

TEST_P(ShardedSteps, TrainAModelLikeDataParallelism) {
  run_ranks(GetParam(), [](const World& world) {
    const auto net = make_net();
    const auto plain = make_net();
    ShardedStep step(Mesh::shard(world), net->parameters(), {.group_bytes = 100});
    const auto options =
        torch::optim::AdamWOptions(kLearningRate).weight_decay(0);  // `unused` counts as zero in a group
    torch::optim::AdamW optimizer(step.slices(), options);
    torch::optim::AdamW plain_optimizer(plain->parameters(), options);
    for (uint64_t n = 0; n < 4; ++n) {
      const torch::Tensor rows = values(100 * n + static_cast<uint64_t>(world.rank), {6, 5});
      const torch::Tensor loss = net->forward(rows).square().mean();
      const torch::Tensor plain_loss = plain->forward(rows).square().mean();
      EXPECT_NEAR(loss.item<double>(), plain_loss.item<double>(), 1e-6);
      loss.backward();
      plain_loss.backward();
      step.reduce_gradients();
      for (const torch::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      for (const torch::Tensor& parameter : plain->parameters()) {
        if (parameter.grad().defined()) {
          parameter.mutable_grad() = sum_over_ranks(world, parameter.grad()) / world.size;
        }
      }
      optimizer.step();
      plain_optimizer.step();
      optimizer.zero_grad();
      plain_optimizer.zero_grad();
      step.gather_updates();
      expect_close(net->parameters(), plain->parameters(), 1e-6);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShardedSteps, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

// ---- what is there when

TEST(ShardedStep, ReductionsAddUpUntilTheyAreReset) {
  run_ranks(2, [](const World& world) {
    const Tensors tensors = make_tensors(3, kAwkward);
    ShardedStep step(Mesh::shard(world), tensors, {.group_bytes = 64});
    step.reduce_gradients(tensors);
    step.reduce_gradients(tensors);
    for (const torch::Tensor& slice : step.slices()) EXPECT_TRUE(torch::allclose(slice.grad(), 2 * slice));
    reset_gradients(step);
    step.reduce_gradients(tensors);
    for (const torch::Tensor& slice : step.slices()) EXPECT_TRUE(torch::allclose(slice.grad(), slice));
  });
}

// A gradient that the program keeps is not written by later reductions; one that it let go is memory for the next.
TEST(ShardedStep, GradientsThatTheProgramKeepsStay) {
  run_ranks(2, [](const World& world) {
    const Tensors tensors = make_tensors(8, {{16}});
    ShardedStep step(Mesh::shard(world), tensors);
    step.reduce_gradients(tensors);
    const void* memory = step.slices()[0].grad().const_data_ptr();
    reset_gradients(step);
    step.reduce_gradients({torch::zeros({16})});
    EXPECT_EQ(step.slices()[0].grad().const_data_ptr(), memory);
    const torch::Tensor kept = step.slices()[0].grad().detach();
    reset_gradients(step);
    step.reduce_gradients(tensors);
    EXPECT_TRUE(torch::equal(kept, torch::zeros({8})));
    EXPECT_TRUE(torch::allclose(step.slices()[0].grad(), step.slices()[0]));
  });
}

// Three groups of two: nobody has a gradient of the first, the last rank alone one of the second.
TEST(ShardedStep, MissingGradientsCountAsZeroAndMissingGroupsAreLeftAlone) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [](const World& world) {
      const Tensors tensors = make_tensors(4, Shapes(6, {8}));
      ShardedStep step(Mesh::shard(world), tensors, {.group_bytes = 64, .slicing = Slicing::kByTensor});
      ASSERT_EQ(step.num_groups(), 3);
      const torch::Tensor ones = torch::ones({8});
      const bool is_last = world.rank == world.size - 1;
      step.reduce_gradients({{}, {}, is_last ? ones : torch::Tensor(), {}, ones, ones});
      EXPECT_FALSE(step.slices()[0].grad().defined());
      const torch::Tensor sum = sum_over_ranks(world, step.slices()[1].grad().sum());
      EXPECT_NEAR(sum.item<double>(), 8.0 / world.size, 1e-6);
      EXPECT_EQ(step.slices()[1].grad().max().item<float>(), 1.0F / static_cast<float>(world.size));
      EXPECT_EQ(step.slices()[1].grad().min().item<float>(), 0.0F);
      EXPECT_NEAR(sum_over_ranks(world, step.slices()[2].grad().sum()).item<double>(), 16, 1e-6);

      const torch::Tensor before = step.slices()[2].grad().clone();
      const torch::Tensor untouched = tensors[0].detach().clone();
      torch::optim::AdamW optimizer(step.slices(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
      optimizer.step();
      step.reduce_gradients(Tensors(6));
      EXPECT_TRUE(torch::equal(step.slices()[2].grad(), before));
      step.gather_updates();
      EXPECT_TRUE(torch::equal(tensors[0], untouched));
      EXPECT_FALSE(torch::allclose(tensors[4], make_tensors(4, Shapes(6, {8}))[4]));
    });
  }
}

TEST(ShardedStep, GatheringIsSeenByAutograd) {
  run_ranks(2, [](const World& world) {
    const Tensors tensors = make_tensors(5, {{6}, {4, 3}, {2, 5}});
    ShardedStep step(Mesh::shard(world), tensors);
    for (const torch::Tensor& tensor : tensors) {
      const auto version = tensor._version();
      const torch::Tensor loss = tensor.square().sum();
      step.gather_updates();
      EXPECT_GT(tensor._version(), version);
      EXPECT_THROW(loss.backward(), c10::Error);
    }
  });
}

// Steps that bf16 is too coarse for: 1 - 0.001 rounds to 1.
TEST(ShardedStep, SlicesAreTheMasterCopy) {
  for (const std::optional<at::ScalarType> main : {std::optional(at::kFloat), std::optional<at::ScalarType>()}) {
    run_ranks(3, [&](const World& world) {
      const torch::Tensor tensor = torch::ones({21}, at::kBFloat16).requires_grad_();
      ShardedStep step(Mesh::shard(world), {tensor}, {.main = main});
      EXPECT_EQ(step.slices()[0].scalar_type(), main.value_or(at::kBFloat16));
      torch::optim::SGD optimizer(step.slices(), torch::optim::SGDOptions(1e-3));
      for (int n = 0; n < 8; ++n) {
        step.reduce_gradients({torch::ones({21}, at::kBFloat16)});
        EXPECT_EQ(step.slices()[0].grad().scalar_type(), main.value_or(at::kBFloat16));
        optimizer.step();
        optimizer.zero_grad();
        step.gather_updates();
      }
      EXPECT_EQ(tensor.min().item<float>(), main ? 0.9921875F : 1.0F);
      EXPECT_EQ(tensor.max().item<float>(), main ? 0.9921875F : 1.0F);
    });
  }
}

TEST(ShardedStep, DtypesHaveGroupsOfTheirOwn) {
  run_ranks(2, [](const World& world) {
    const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf};
    Tensors tensors, gradients, expected;
    for (uint64_t i = 0; i < 12; ++i) {
      const at::ScalarType dtype = dtypes[i % 4];
      tensors.push_back(values(i, {9}, dtype));
      gradients.push_back(torch::full({9}, world.rank + 1, dtype));
      expected.push_back((tensors.back().to(at::kDouble) - 0.5 * 1.5).to(dtype));
    }
    ShardedStep step(Mesh::shard(world), tensors);
    ASSERT_EQ(step.num_groups(), 4);
    for (size_t g = 0; g < 4; ++g) EXPECT_EQ(step.slices()[g].scalar_type(), dtypes[g]);
    step.reduce_gradients(gradients);
    torch::optim::SGD(step.slices(), torch::optim::SGDOptions(0.5)).step();
    step.gather_updates();
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_TRUE(torch::allclose(tensors[i], expected[i], i % 4 == 1 ? 1e-2 : 1e-3, 1e-2)) << i;
    }
  });
}

TEST(ShardedStep, OnlyRanksOfTheShardAxisTakePart) {
  run_ranks(4, [](const World& world) {
    const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
    ShardedStep step(mesh, make_tensors(6, {{10}}));
    step.reduce_gradients({torch::full({10}, static_cast<float>(world.rank))});
    const torch::Tensor own = step.slices()[0].grad().narrow(0, 0, 2);
    EXPECT_TRUE(torch::equal(own, torch::full({2}, world.rank < 2 ? 0.5 : 2.5)));
  });
}

// One group is on its way while the next is packed, and no third is started before the first is done.
TEST(ShardedStep, GroupsOverlapInPairs) {
  run_ranks(2, [](const World& world) {
    const Tensors tensors = make_tensors(7, Shapes(4, {8}));
    ShardedStep step(Mesh::shard(world), tensors, {.group_bytes = 32});
    for (const std::string what : {"reduce", "gather"}) {
      const TraceCollector trace;
      what == "reduce" ? step.reduce_gradients(tensors) : step.gather_updates();
      std::string order;
      for (const TraceEvent& event : trace.events()) order += event.name.substr(0, 1) + event.unit.back() + " ";
      EXPECT_EQ(order, "s0 s1 w0 s2 w1 s3 w2 w3 ") << what;
    }
  });
}

}  // namespace
}  // namespace fsdp::functional::sharded_step_test
