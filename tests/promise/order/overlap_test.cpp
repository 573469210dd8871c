// Communication hides behind computation: proven from a trace, with a network that is slow and a model that computes
// for longer than a transfer takes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "fsdp/fsdp.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::overlap_test {
namespace {

using namespace std::chrono_literals;

// Takes its time, like a large matrix product would; 0 values come out, so that nothing depends on it.
torch::Tensor compute_for(std::chrono::milliseconds time, const torch::Tensor& x) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(200us);
  return x;
}

struct SlowGradient : torch::autograd::Function<SlowGradient> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return compute_for(12ms, x.clone());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grad) {
    return {compute_for(12ms, grad[0])};
  }
};

// A root that owns the first and the last layer, and four children.
struct SlowModel : torch::nn::Module {
  SlowModel() {
    inlet = register_module("inlet", torch::nn::Linear(8, 8));
    for (int i = 0; i < 4; ++i) blocks->push_back(torch::nn::Linear(8, 8));
    register_module("blocks", blocks);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = SlowGradient::apply(inlet(x));
    for (const auto& block : *blocks) x = SlowGradient::apply(torch::tanh(block->as<torch::nn::Linear>()->forward(x)));
    return x;
  }
  torch::nn::Linear inlet{nullptr};
  torch::nn::ModuleList blocks;
};

constexpr auto kTransfer = 8ms;

comm::ConnectOptions slow_network(int) {
  comm::ConnectOptions options;
  options.delays = {kTransfer, kTransfer};
  return options;
}

struct Recording {
  std::vector<profile::UnitTimes> units;
  profile::Totals totals;
  std::string summary;
  nlohmann::json trace;
};

Recording record_third_step(const World& world, const ShardOptions& options, const std::string& path) {
  const auto model = testing::make_seeded(3, [] { return std::make_shared<SlowModel>(); });
  for (const auto& block : *model->blocks) fully_shard(*block, Mesh::shard(world), options);
  Unit root = fully_shard(*model, Mesh::shard(world), options);
  SGD optimizer(parameters(*model), {.lr = 0.1});
  const auto step = [&] {
    model->forward(torch::ones({2, 8})).sum().backward();
    optimizer.step();
    zero_grad(*model);
  };
  step();
  step();
  profile::Session session(world.rank);
  step();
  session.stop();
  Recording recording{session.units(), session.totals(), session.summary(), {}};
  session.write(path);
  std::ifstream file(path);
  recording.trace = nlohmann::json::parse(file);
  return recording;
}

double sum_of(const Recording& recording, double profile::UnitTimes::*field) {
  double sum = 0;
  for (const auto& unit : recording.units) sum += unit.*field;
  return sum;
}

TEST(Overlap, AllButTheFirstGatherHideBehindComputation) {
  const io::TemporaryFolder folder;
  testing::run_ranks_with(2, slow_network, [&](const World& world) {
    const Recording recording = record_third_step(world, {}, folder / ("trace" + std::to_string(world.rank) + ".json"));
    // Root and blocks in the forward, three blocks again in the backward; each gather takes 8 ms at least.
    EXPECT_GE(sum_of(recording, &profile::UnitTimes::gather), 8 * 8.0) << recording.summary;
    for (const auto& unit : recording.units) {
      if (unit.unit.empty()) continue;
      SCOPED_TRACE(unit.unit + "\n" + recording.summary);
      const bool first = unit.unit == "root";
      // The root's gather has nothing to hide behind, and its reduction comes last.
      if (first) {
        EXPECT_GE(unit.exposed, 15.0);
        continue;
      }
      EXPECT_GT(unit.overlapped, 0.5 * unit.gather);
      if (unit.unit == "blocks.0") continue;
      EXPECT_LT(unit.exposed, 0.5 * (unit.gather + unit.reduce));
    }
    EXPECT_GE(recording.totals.compute, 2 * 5 * 12.0) << recording.summary;
    EXPECT_NEAR(recording.totals.window, recording.totals.compute + recording.totals.exposed + recording.totals.other,
                1e-6);
  });
}

TEST(Overlap, OnDemandHidesNoGather) {
  const io::TemporaryFolder folder;
  testing::run_ranks_with(2, slow_network, [&](const World& world) {
    ShardOptions options;
    options.schedule = schedule::Schedule::on_demand();
    const Recording recording =
        record_third_step(world, options, folder / ("trace" + std::to_string(world.rank) + ".json"));
    EXPECT_GE(recording.totals.exposed, 8 * 8.0) << recording.summary;
  });
}

TEST(Overlap, TheTraceIsChromesAndUsesTheGlossarysNames) {
  const io::TemporaryFolder folder;
  testing::run_ranks_with(2, slow_network, [&](const World& world) {
    const std::string path = folder / ("trace" + std::to_string(world.rank) + ".json");
    const Recording recording = record_third_step(world, {}, path);
    std::map<std::string, int> events;
    std::map<int, std::string> threads;
    std::map<int, double> last_end;
    for (const auto& event : recording.trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], world.rank);
      if (event["ph"] == "M") {
        if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
        continue;
      }
      EXPECT_EQ(event["ph"], "X");
      EXPECT_GE(event["ts"].get<double>(), 0);
      EXPECT_GE(event["dur"].get<double>(), 0);
      ++events[threads.at(event["tid"]) + ": " + event["name"].get<std::string>()];
      // On a communication thread one job follows the other.
      if (event["tid"] != 0) {
        EXPECT_GE(event["ts"].get<double>() + 0.01, last_end[event["tid"]]);
        last_end[event["tid"]] = event["ts"].get<double>() + event["dur"].get<double>();
      }
    }
    for (const char* name :
         {"program: forward root", "program: backward blocks.2", "program: wait gather root",
          "gather thread: gather blocks.1", "reduce thread: reduce blocks.3", "program: reshard blocks.0"}) {
      EXPECT_GT(events[name], 0) << name;
    }
    EXPECT_EQ(events["gather thread: gather blocks.1"], 2);
    EXPECT_EQ(events["reduce thread: reduce blocks.1"], 1);
    EXPECT_NE(recording.summary.find("blocks.3"), std::string::npos);
  });
}

TEST(Overlap, AFileThatCannotBeWrittenIsNamed) {
  profile::Session session;
  try {
    session.write("/no/such/folder/trace.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFileSystem);
    EXPECT_NE(std::string(error.what()).find("/no/such/folder/trace.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp::overlap_test
