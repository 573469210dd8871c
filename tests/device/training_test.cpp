// Training on a device with streams: the numbers are the CPU's, every order that the memory needs is there, the host
// waits for nothing, and communication may overlap computation wherever the schedule says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/fsdp.h"
#include "tests/device/device_model.h"
#include "tests/device/fake_device.h"
#include "tests/support/ranks.h"

namespace fsdp::training_test {
namespace {

using schedule::Schedule;
using testing::DeviceModel;
using testing::fake_device;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::stream_clocks;
using testing::StreamClocks;
using testing::StreamTask;

constexpr int kLayers = 4;
constexpr int64_t kWidth = 16;
constexpr int kSteps = 3;

struct Plan {
  ShardOptions options;
  int num_microbatches = 1;
  bool is_sharded = true;
};

struct Outcome {
  std::vector<torch::Tensor> losses;
  std::vector<torch::Tensor> weights;  // sharded: this rank's
};

torch::Tensor rows_of(int step, int microbatch, c10::Device device) {
  const auto generator = testing::generator(static_cast<uint64_t>(100 * step + microbatch));
  return torch::randn({6, kWidth}, generator).to(device);
}

Unit shard(DeviceModel& model, const Mesh& mesh, const ShardOptions& options) {
  for (const auto& layer : model.layers) fully_shard(*layer, mesh, options);
  return fully_shard(model, mesh, options);
}

// `before_step`, for what is to be observed, runs before each step; the inputs are there before the first.
Outcome train(const World& world, c10::Device device, const Plan& plan,
              const std::function<void(int step)>& before_step = {}) {
  DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
  std::optional<Unit> root;
  if (plan.is_sharded) root = shard(model, Mesh::shard(world), plan.options);
  const std::vector<torch::Tensor> leaves = plan.is_sharded ? parameters(model) : model.parameters();
  torch::optim::SGD optimizer(leaves, torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<torch::Tensor> batches;  // of all steps: copies from the host wait
  for (int step = 0; step < kSteps; ++step)
    for (int i = 0; i < plan.num_microbatches; ++i) batches.push_back(rows_of(step, i, device));
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    if (before_step) before_step(step);
    for (int i = 0; i < plan.num_microbatches; ++i) {
      const bool is_last = i + 1 == plan.num_microbatches;
      const auto scope = root ? std::make_optional<Microbatch>(*root, is_last) : std::nullopt;
      torch::Tensor loss =
          model.forward(batches[static_cast<size_t>(step * plan.num_microbatches + i)]).square().mean() /
          plan.num_microbatches;
      loss.backward();
      outcome.losses.push_back(loss.detach());
    }
    optimizer.step();
    plan.is_sharded ? zero_grad(model) : model.zero_grad();
  }
  for (torch::Tensor& loss : outcome.losses) loss = loss.cpu();
  for (const torch::Tensor& leaf : leaves) outcome.weights.push_back(leaf.detach().cpu().flatten());
  return outcome;
}

void expect_same(const Outcome& outcome, const Outcome& expected, double tolerance = 0) {
  ASSERT_EQ(outcome.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_TRUE(torch::allclose(outcome.losses[i], expected.losses[i], tolerance, tolerance))
        << "loss " << i << ": " << outcome.losses[i].item<float>() << " against " << expected.losses[i].item<float>();
  }
  for (size_t i = 0; i < expected.weights.size(); ++i) {
    EXPECT_TRUE(torch::allclose(outcome.weights[i], expected.weights[i], tolerance, tolerance)) << "weight " << i;
  }
}

void expect_ordered() {
  EXPECT_THAT(stream_clocks().races(), IsEmpty());
  EXPECT_EQ(stream_clocks().num_host_waits(), 0);
  EXPECT_EQ(stream_clocks().num_recorded_streams(), 0);
}

struct Case {
  std::string name;
  Plan plan;
};

ShardOptions with(const Schedule& schedule) {
  ShardOptions options;
  options.schedule = schedule;
  return options;
}

ShardOptions with(const AllocatorOptions& allocator) {
  ShardOptions options;
  options.allocator = allocator;
  return options;
}

ShardOptions with(Strategy strategy) {
  ShardOptions options;
  options.strategy = strategy;
  return options;
}

ShardOptions with(bool reshard_after_forward) {
  ShardOptions options;
  options.reshard_after_forward = reshard_after_forward;
  return options;
}

Case copied(std::string name, ShardOptions options = {}, int num_microbatches = 1) {
  options.whole_weights = WholeWeights::kCopied;
  return {std::move(name), {std::move(options), num_microbatches}};
}

Schedule unified() {
  Schedule schedule;
  schedule.threads = schedule::CommThreads::kUnified;
  schedule.release = schedule::ReleaseOrder::kReshardFirst;
  return schedule;
}

std::vector<Case> cases() {
  using schedule::BackwardPrefetch;
  return {copied("plain"),
          copied("accumulation", {}, 3),
          copied("deep", with(Schedule::static_order(2))),
          copied("delayed", with(Schedule::delayed_release(1))),
          copied("delayed longer", with(Schedule::delayed_release(2)), 2),
          copied("on demand", with(Schedule::on_demand())),
          copied("prefetch late", with(Schedule::fsdp1(true, BackwardPrefetch::kPost, true))),
          copied("unified", with(unified())),
          copied("kept after the forward", with(false)),
          copied("zero 2", with(Strategy::kOptimGrads), 2),
          copied("zero 1", with(Strategy::kOptim), 2),
          copied("storage resize", with(AllocatorOptions::storage_resize())),
          copied("two slabs", with(AllocatorOptions::rotary(2))),
          copied("fixed pool", with(AllocatorOptions::fixed_pool(1 << 20))),
          copied("traced", with(AllocatorOptions::traced()), 2),
          {"aliased", {{}, 2}},
          {"no shard", {with(Strategy::kNoShard), 2}}};
}

TEST(DeviceTraining, HasTheNumbersOfTheCpuAndEveryOrderItNeeds) {
  for (const Case& test_case : cases()) {
    SCOPED_TRACE(test_case.name);
    Plan plain;
    plain.is_sharded = false;
    plain.num_microbatches = test_case.plan.num_microbatches;
    const Outcome expected = train(comm::connect_alone(), at::kCPU, plain);
    const Outcome outcome = train(comm::connect_alone(), fake_device(), test_case.plan, [](int step) {
      if (step > 0) expect_ordered();
      stream_clocks().clear();
    });
    EXPECT_THAT(stream_clocks().races(), IsEmpty());
    expect_same(outcome, expected);
  }
}

TEST(DeviceTraining, LowPrecisionHasEveryOrderItNeeds) {
  for (const bool in_place : {false, true}) {
    ShardOptions options;
    options.precision = Precision::bf16();
    options.whole_weights = in_place ? WholeWeights::kInPlace : WholeWeights::kCopied;
    DeviceModel model(kLayers, kWidth, at::TensorOptions(fake_device()));
    shard(model, Mesh::shard(comm::connect_alone()), options);
    torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.1));
    std::vector<torch::Tensor> losses;
    const torch::Tensor rows = rows_of(0, 0, fake_device()).to(at::kBFloat16);
    stream_clocks().clear();
    for (int step = 0; step < 4; ++step) {
      losses.push_back(model.forward(rows).to(at::kFloat).square().mean());
      losses.back().backward();
      optimizer.step();
      zero_grad(model);
    }
    expect_ordered();
    EXPECT_LT(losses.back().item<float>(), losses.front().item<float>());
  }
}

// The same model as ranks of a world: gradients over host memory, sums bit by bit the CPU's.
TEST(DeviceTraining, SeveralRanksAgreeWithTheCpu) {
  for (const int size : {2, 3}) {
    for (const Strategy strategy : {Strategy::kOptimGradsParams, Strategy::kOptimGrads, Strategy::kNoShard}) {
      Plan plan{with(strategy), 2};
      std::vector<Outcome> expected(static_cast<size_t>(size)), outcomes(static_cast<size_t>(size));
      testing::run_ranks(
          size, [&](const World& world) { expected[static_cast<size_t>(world.rank)] = train(world, at::kCPU, plan); });
      stream_clocks().clear();
      testing::run_ranks(size, [&](const World& world) {
        outcomes[static_cast<size_t>(world.rank)] = train(world, fake_device(world.rank), plan);
      });
      EXPECT_THAT(stream_clocks().races(), IsEmpty());
      for (int rank = 0; rank < size; ++rank) {
        expect_same(outcomes[static_cast<size_t>(rank)], expected[static_cast<size_t>(rank)]);
      }
    }
  }
}

TEST(DeviceTraining, ReplicasAndForwardGroupsHaveEveryOrderTheyNeed) {
  struct Grid {
    Strategy strategy;
    int replicas;
    std::optional<ReshardAfterForward> reshard;
  };
  for (const Grid& grid :
       {Grid{Strategy::kHybrid, 2, {}}, Grid{Strategy::kHybridOptim, 2, {}}, Grid{Strategy::kOptimGradsParams, 1, 2}}) {
    std::vector<Outcome> outcomes[2] = {std::vector<Outcome>(4), std::vector<Outcome>(4)};
    for (const bool on_device : {false, true}) {
      stream_clocks().clear();
      testing::run_ranks(4, [&](const World& world) {
        const c10::Device device = on_device ? fake_device(world.rank) : c10::Device(at::kCPU);
        const Mesh mesh(world, {{"replicate", grid.replicas}, {"shard", 4 / grid.replicas}});
        DeviceModel model(kLayers, kWidth, at::TensorOptions(device));
        ShardOptions options = with(grid.strategy);
        options.reshard_after_forward = grid.reshard;
        shard(model, mesh, options);
        torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.1));
        Outcome& outcome = outcomes[on_device ? 1 : 0][static_cast<size_t>(world.rank)];
        for (int step = 0; step < kSteps; ++step) {
          const torch::Tensor loss = model.forward(rows_of(step, 0, device)).square().mean();
          loss.backward();
          optimizer.step();
          zero_grad(model);
          outcome.losses.push_back(loss.detach().cpu());
        }
        for (const torch::Tensor& leaf : parameters(model)) outcome.weights.push_back(leaf.detach().cpu());
      });
      EXPECT_THAT(stream_clocks().races(), IsEmpty());
    }
    for (size_t rank = 0; rank < 4; ++rank) expect_same(outcomes[1][rank], outcomes[0][rank]);
  }
}

// ---- overlap

struct Step {
  std::vector<StreamTask> tasks;

  // Of a range; a layer is gathered and computed once in a pass.
  StreamTask first(const std::string& range, size_t from = 0) const { return tasks[index(range, from)]; }
  StreamTask last(const std::string& range) const { return tasks[last_index(range)]; }
  size_t last_index(const std::string& range) const {
    for (size_t i = tasks.size(); i-- > 0;) {
      if (tasks[i].range == range) return i;
    }
    ADD_FAILURE() << "no " << range;
    return 0;
  }
  size_t index(const std::string& range, size_t from = 0) const {
    for (size_t i = from; i < tasks.size(); ++i) {
      if (tasks[i].range == range) return i;
    }
    ADD_FAILURE() << "no " << range;
    return 0;
  }
};

// The second step's; the first learns the order.
Step record_step(const Schedule& schedule) {
  const testing::ShownRanges ranges;
  Step step;
  const Case test_case = copied("", with(schedule));
  train(comm::connect_alone(), fake_device(), test_case.plan, [&](int number) {
    if (number == 2) step.tasks = stream_clocks().tasks();
    stream_clocks().clear();
  });
  return step;
}

std::string layer(int i) { return "layer" + std::to_string(i); }

TEST(DeviceOverlap, TheNextGatherDoesNotWaitForThisUnitsComputation) {
  const Step step = record_step({});
  for (int i = 0; i + 1 < kLayers; ++i) {
    SCOPED_TRACE(i);
    const StreamTask gather = step.first("gather " + layer(i + 1)), compute = step.last("forward " + layer(i));
    EXPECT_FALSE(StreamClocks::comes_after(gather, compute));
    EXPECT_FALSE(StreamClocks::comes_after(compute, gather));
    EXPECT_TRUE(StreamClocks::comes_after(step.first("forward " + layer(i + 1)), gather));
  }
  const size_t turn = step.last_index("forward " + layer(kLayers - 1));
  for (int i = kLayers - 1; i > 0; --i) {
    SCOPED_TRACE(i);
    const StreamTask gather = step.first("gather " + layer(i - 1), turn);
    EXPECT_FALSE(StreamClocks::comes_after(gather, step.first("backward " + layer(i))));
    EXPECT_TRUE(StreamClocks::comes_after(step.first("backward " + layer(i - 1)), gather));
  }
}

TEST(DeviceOverlap, AReductionOverlapsTheNextUnitsBackward) {
  const Step step = record_step({});
  for (int i = kLayers - 1; i > 0; --i) {
    SCOPED_TRACE(i);
    const StreamTask reduce = step.first("reduce " + layer(i));
    EXPECT_TRUE(StreamClocks::comes_after(reduce, step.first("backward " + layer(i))));
    EXPECT_FALSE(StreamClocks::comes_after(step.first("backward " + layer(i - 1)), reduce));
    EXPECT_FALSE(StreamClocks::comes_after(reduce, step.last("backward " + layer(i - 1))));
  }
}

// Gathers that are issued behind the computation of the unit before overlap it all the same; in the backward perhaps
// its end only, when their memory is that of a gradient whose reduction has been waited for in the middle.
TEST(DeviceOverlap, AGatherThatIsIssuedLateOverlapsToo) {
  const Step late = record_step(Schedule::fsdp1(true, schedule::BackwardPrefetch::kPost, false));
  const size_t turn = late.last_index("forward " + layer(kLayers - 1));
  for (int i = kLayers - 2; i > 0; --i) {
    SCOPED_TRACE(i);
    const StreamTask gather = late.first("gather " + layer(i - 1), turn);
    EXPECT_FALSE(StreamClocks::comes_after(gather, late.last("backward " + layer(i))));
  }
  const Step delayed = record_step(Schedule::delayed_release(1));
  for (int i = 1; i < kLayers; ++i) {
    SCOPED_TRACE(i);
    const StreamTask gather = delayed.first("gather " + layer(i)), before = delayed.first("forward " + layer(i - 1));
    EXPECT_FALSE(StreamClocks::comes_after(gather, before));
  }
}

// ---- one device

TEST(DeviceRules, AllUnitsOfAWorldAreOnOneDevice) {
  const World world = comm::connect_alone();
  DeviceModel first(1, kWidth, at::TensorOptions(fake_device(0)));
  const Unit unit = fully_shard(first, Mesh::shard(world));
  DeviceModel second(1, kWidth, at::TensorOptions(fake_device(1)));
  try {
    fully_shard(second, Mesh::shard(world));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("got fake:1, expected fake:0"));
  }
}

// Destroyed on another thread than the program's, it keeps that one until it may go.
struct Loiterer {
  explicit Loiterer(std::shared_future<void> end) : may_go(std::move(end)), program(std::this_thread::get_id()) {}
  ~Loiterer() {
    if (std::this_thread::get_id() != program) may_go.wait_for(std::chrono::seconds(10));
  }
  std::shared_future<void> may_go;
  std::thread::id program;
};

// Autograd's thread of a device may let go of a backward after the program has let go of the model: the next model of
// that world must not meet the first one's order, options and numbers, or it would on some ranks only.
TEST(DeviceRules, AModelIsGoneWhenTheProgramHasLetGoOfIt) {
  const World world = comm::connect_alone();
  for (int i = 0; i < 200; ++i) {  // it is a matter of microseconds
    SCOPED_TRACE(i);
    std::promise<void> end;
    auto loiterer = std::make_shared<Loiterer>(end.get_future().share());
    {
      DeviceModel model(1, kWidth, at::TensorOptions(fake_device()));
      fully_shard(model, Mesh::shard(world));
      const at::Tensor loss = model.forward(rows_of(0, 0, fake_device())).sum();
      loss.register_hook([&loiterer](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback([held = std::move(loiterer)] {});
      });
      loss.backward();
    }
    DeviceModel next(1, kWidth, at::TensorOptions(fake_device()));
    ShardOptions options;
    options.schedule = Schedule::delayed_release(1);
    EXPECT_NO_THROW(fully_shard(next, Mesh::shard(world), options));
    end.set_value();
  }
}

TEST(DeviceRules, AParameterThatStayedBehindIsNamed) {
  DeviceModel model(1, kWidth, at::TensorOptions(fake_device()));
  model.outlet->register_parameter("late", torch::zeros({4}));
  try {
    fully_shard(model, Mesh::shard(comm::connect_alone()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'outlet.late': got device cpu, expected fake:0"));
  }
}

TEST(DeviceRules, TheBackwardsEventsReachTheProgramsCollector) {
  DeviceModel model(kLayers, kWidth, at::TensorOptions(fake_device()));
  ShardOptions options;
  options.whole_weights = WholeWeights::kCopied;
  shard(model, Mesh::shard(comm::connect_alone()), options);
  const torch::Tensor rows = rows_of(0, 0, fake_device());
  const TraceCollector trace;
  model.forward(rows).sum().backward();
  std::set<std::string> names;
  for (const TraceEvent& event : trace.events()) names.insert(event.name);
  for (const char* name : {"unshard", "forward", "backward", "start reduce", "wait reduce"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
}

}  // namespace
}  // namespace fsdp::training_test
