// The planner says what a step does, in which order and with how many bytes, and the runtime's trace agrees to the last
// event: for every strategy and schedule, and for models that go through their units in any order.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "fsdp/base/trace.h"
#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"
#include "plan/time/step_costs.h"
#include "plan/time/step_script.h"

namespace fsdp::planned_order_test {
namespace {

using namespace plan::time;
using schedule::BackwardPrefetch;
using schedule::Schedule;

constexpr int64_t kWidth = 16;
constexpr int64_t kUnitElements = kWidth * kWidth + kWidth;  // a multiple of 4 ranks times 16 bytes: no padding
constexpr int kSteps = 4;

// Goes through its blocks in the order that it is given; the root has a layer before and one behind them.
struct Wanderer : torch::nn::Module {
  Wanderer(int num_blocks, std::vector<int> way) : order(std::move(way)) {
    inlet = register_module("inlet", torch::nn::Linear(kWidth, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(torch::nn::Linear(kWidth, kWidth));
    outlet = register_module("outlet", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = inlet(x);
    for (const int i : order) x = torch::tanh(blocks->ptr(static_cast<size_t>(i))->as<torch::nn::Linear>()->forward(x));
    return outlet(x);
  }
  torch::nn::Linear inlet{nullptr}, outlet{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  std::vector<int> order;
};

struct Case {
  int num_blocks = 4;
  std::vector<int> order = {0, 1, 2, 3};
  Strategy strategy = Strategy::kOptimGradsParams;
  int replicas = 1;
  Schedule schedule;
  int microbatches = 1;
  std::optional<int> reshard_after_forward;
};

constexpr int kRanks = 4;

StepWork planned(const Case& test) {
  StepWork work;
  const int root = test.num_blocks;
  for (int i = 0; i < test.num_blocks; ++i)
    work.units.push_back({"blocks." + std::to_string(i), root, kUnitElements * 4, kUnitElements * 4});
  work.units.push_back({"root", -1, 2 * kUnitElements * 4, 2 * kUnitElements * 4});
  work.passages.push_back({root, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients});
  for (size_t i = 0; i < test.order.size(); ++i) {
    const auto before = test.order.begin() + static_cast<std::ptrdiff_t>(i);
    const bool comes_back = std::find(test.order.begin(), before, test.order[i]) != before;
    work.passages.push_back(
        {test.order[i], 0, {}, {}, BackwardReads::kWeights, comes_back ? Arrival::kNone : Arrival::kSomeGradients});
  }
  work.passages.push_back({root, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients});
  work.strategy = test.strategy;
  work.schedule = test.schedule;
  work.microbatches = test.microbatches;
  work.shard_ranks = kRanks / test.replicas;
  work.replica_ranks = test.replicas;
  work.ranks_per_node = kRanks;
  work.reshard_after_forward = test.reshard_after_forward;
  return work;
}

std::vector<std::string> planned_events(const StepWork& work) {
  std::vector<std::string> events;
  for (const Instruction& instruction : record_step(work)) {
    if (instruction.unit >= 0 && instruction.action != Action::kCompute) events.push_back(describe(instruction, work));
  }
  return events;
}

// A link of one byte a millisecond: what transfers hold it for is what this rank receives.
int64_t planned_bytes(const StepWork& work, Action action) {
  Hardware hardware = find_hardware("cpu-core");
  hardware.node = {1e3, 0};
  const StepCosts costs = price(work, hardware);
  double bytes = 0;
  for (const Instruction& instruction : record_step(work)) {
    if (instruction.action != action) continue;
    for (const Transfer& transfer : costs.transfers(instruction)) bytes += transfer.link_ms;
  }
  return std::llround(bytes);
}

struct Observed {
  std::vector<std::string> events;
  Counters counters;
};

Observed run(const Case& test) {
  const World world = comm::connect_fabric(kRanks, {std::chrono::nanoseconds(0), 1e12});
  const Mesh mesh(world, {{"replicate", test.replicas}, {"shard", kRanks / test.replicas}});
  ShardOptions options;
  options.strategy = test.strategy;
  options.schedule = test.schedule;
  if (test.reshard_after_forward) options.reshard_after_forward = *test.reshard_after_forward;
  torch::manual_seed(1);
  const auto model = std::make_shared<Wanderer>(test.num_blocks, test.order);
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
  Unit root = fully_shard(*model, mesh, options);
  SGD optimizer(parameters(*model), {.lr = 0.01});
  Observed observed;
  for (int step = 0; step < kSteps; ++step) {
    root.reset_counters();
    TraceCollector trace;
    for (int microbatch = 0; microbatch < test.microbatches; ++microbatch) {
      const Microbatch scope(root, microbatch + 1 == test.microbatches);
      model->forward(torch::ones({2, kWidth}).requires_grad_()).square().mean().backward();
    }
    optimizer.step();
    zero_grad(*model);
    observed.events.clear();
    for (const TraceEvent& event : trace.events()) {
      const bool is_compute = event.name == "forward" || event.name == "backward";
      if (event.thread.empty() && !is_compute) observed.events.push_back(event.name + " " + event.unit);
    }
    observed.counters = root.counters();
  }
  return observed;
}

void expect_as_planned(const Case& test) {
  const StepWork work = planned(test);
  const Observed observed = run(test);
  EXPECT_EQ(observed.events, planned_events(work));
  EXPECT_EQ(observed.counters.gather_bytes, planned_bytes(work, Action::kStartGather));
  EXPECT_EQ(observed.counters.reduce_bytes, planned_bytes(work, Action::kStartReduce));
}

std::vector<Schedule> schedules() {
  std::vector<Schedule> all = {{},
                               Schedule::static_order(0),
                               Schedule::static_order(2),
                               Schedule::static_order(3, 2200),
                               Schedule::delayed_release(1),
                               Schedule::delayed_release(2),
                               Schedule::on_demand(),
                               Schedule::fsdp1(false, BackwardPrefetch::kPost, true),
                               Schedule::fsdp1(true, BackwardPrefetch::kPre, true),
                               Schedule::fsdp1(true, BackwardPrefetch::kNone, false)};
  Schedule limited = Schedule::static_order(3);
  limited.max_gathers_in_flight = 1;
  Schedule unified;
  unified.threads = schedule::CommThreads::kUnified;
  Schedule reshard_first;
  reshard_first.release = schedule::ReleaseOrder::kReshardFirst;
  all.insert(all.end(), {limited, unified, reshard_first});
  return all;
}

TEST(PlannedOrder, IsTheRuntimesForEveryStrategyAndSchedule) {
  const std::pair<Strategy, int> strategies[] = {
      {Strategy::kNoShard, 1},    {Strategy::kOptim, 1},  {Strategy::kOptimGrads, 1},  {Strategy::kOptimGradsParams, 1},
      {Strategy::kOptimGrads, 2}, {Strategy::kHybrid, 2}, {Strategy::kHybridZero2, 2}, {Strategy::kHybridOptim, 2}};
  for (const auto& [strategy, replicas] : strategies) {
    for (const Schedule& schedule : schedules()) {
      for (const int microbatches : {1, 2}) {
        SCOPED_TRACE(std::string(name(strategy)) + ", " + describe(schedule) + ", " + std::to_string(microbatches) +
                     " microbatches, " + std::to_string(replicas) + " replicas");
        Case test;
        test.strategy = strategy;
        test.replicas = replicas;
        test.schedule = schedule;
        test.microbatches = microbatches;
        expect_as_planned(test);
      }
    }
  }
}

TEST(PlannedOrder, IsTheRuntimesWithForwardGroups) {
  for (const int group : {1, 2, 4}) {
    SCOPED_TRACE(group);
    Case test;
    test.reshard_after_forward = group;
    expect_as_planned(test);
  }
}

// Units come back, or come in another order than they were made in.
TEST(PlannedOrder, IsTheRuntimesForModelsThatGoAnyWay) {
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::vector<Schedule> all = schedules();
  for (int i = 0; i < 40; ++i) {
    Case test;
    test.num_blocks = 2 + static_cast<int>(random() % 4);
    test.order.clear();
    for (int block = 0; block < test.num_blocks; ++block) test.order.push_back(block);
    for (size_t repeats = random() % 4; repeats > 0; --repeats)
      test.order.push_back(static_cast<int>(random()) % test.num_blocks);
    for (int& block : test.order) block = std::abs(block);
    std::shuffle(test.order.begin(), test.order.end(), random);
    test.strategy = random() % 2 == 0 ? Strategy::kOptimGradsParams : Strategy::kOptimGrads;
    test.schedule = all[random() % all.size()];
    test.microbatches = 1 + static_cast<int>(random() % 2);
    std::string way;
    for (const int block : test.order) way += std::to_string(block) + " ";
    SCOPED_TRACE("seed " + std::to_string(seed) + ", case " + std::to_string(i) + ": " + way + ", " +
                 std::string(name(test.strategy)) + ", " + describe(test.schedule) + ", " +
                 std::to_string(test.microbatches) + " microbatches");
    expect_as_planned(test);
  }
}

}  // namespace
}  // namespace fsdp::planned_order_test
