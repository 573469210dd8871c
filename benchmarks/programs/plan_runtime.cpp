// The planner's time against steps that really run: rank 0 of ranks that do not exist, over a network of known latency
// and bandwidth (comm::connect_fabric). First a model whose computation takes a known time, then small decoders on
// costs that were calibrated here, or one decoder in worlds of many sizes (--worlds). Prints tables for
// docs/plan_time.md; run it on a quiet machine.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "benchmarks/support/command_line.h"
#include "benchmarks/support/measure.h"
#include "benchmarks/support/peer_inputs.h"
#include "fsdp/comm/connection.h"
#include "models/decoder.h"
#include "plan/time/decoder_work.h"
#include "plan/time/hardware_file.h"
#include "plan/time/step_time.h"
#include "train/calibrate/calibration.h"
#include "train/model/parallelize.h"

namespace fsdp::benchmarks::plan_runtime_program {
namespace {

namespace pt = plan::time;
using schedule::Schedule;

// Strategy, mesh and network of a row.
struct Setting {
  Strategy strategy = Strategy::kOptimGradsParams;
  int ranks = 4;
  int replicas = 1;
  Schedule schedule;
  double latency_ms = 0;
  double megabytes_per_second = 1000;
  int microbatches = 1;

  World connect() const {
    comm::FabricModel model;
    model.latency = std::chrono::nanoseconds(static_cast<int64_t>(1e6 * latency_ms));
    model.bytes_per_second = 1e6 * megabytes_per_second;
    return comm::connect_fabric(ranks, model);
  }
  Mesh mesh(const World& world) const { return {world, {{"replicate", replicas}, {"shard", ranks / replicas}}}; }

  // All ranks in one node: there is one link.
  void describe_network(pt::Hardware& hardware) const {
    hardware.execution = pt::Execution::kProgramComputes;
    hardware.sharing = pt::Sharing::kQueue;
    hardware.hops = pt::Hops::kNone;
    hardware.start_us = 1e3 * latency_ms;
    hardware.node = hardware.network = {1e6 * megabytes_per_second, 0};
    hardware.network_efficiency = 1;
    hardware.slowdown_by_transfers = 0;
  }

  std::string text() const {
    char line[200];
    std::snprintf(line, sizeof(line), "%s, %d ranks, %s, %.1f ms + %.0f MB/s, %d microbatches",
                  std::string(name(strategy)).c_str(), ranks, schedule::describe(schedule).c_str(), latency_ms,
                  megabytes_per_second, microbatches);
    return line;
  }
};

// Of a step, after two that learn the order. On a machine that does other work too, the fastest is the step itself.
struct Milliseconds {
  double median, fastest;
};

Milliseconds time_steps(int steps, const std::function<void()>& step) {
  for (int i = 0; i < 2; ++i) step();
  std::vector<double> times;
  for (int i = 0; i < steps; ++i) {
    Stopwatch watch;
    step();
    times.push_back(watch.lap());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

class Errors {
 public:
  explicit Errors(const char* what) : what_(what) {
    std::printf("| %s | planned, ms | run, median | error | run, fastest | error |\n|---|---|---|---|---|---|\n", what);
  }
  void print_row(const std::string& text, const Milliseconds& run, double planned) {
    const double of_median = planned / run.median - 1, of_fastest = planned / run.fastest - 1;
    std::printf("| %s | %.2f | %.2f | %+.2f%% | %.2f | %+.2f%% |\n", text.c_str(), planned, run.median, 100 * of_median,
                run.fastest, 100 * of_fastest);
    std::fflush(stdout);
    median_ += std::abs(of_median);
    fastest_ += std::abs(of_fastest);
    worst_ = std::abs(of_fastest) > std::abs(worst_) ? of_fastest : worst_;
    ++count_;
  }
  void print_mean() const {
    std::printf("%s: mean absolute error %.2f%% of the median, %.2f%% of the fastest, worst of these %+.2f%%\n\n",
                what_, 100 * median_ / count_, 100 * fastest_ / count_, 100 * worst_);
  }

 private:
  const char* what_;
  double median_ = 0, fastest_ = 0, worst_ = 0;
  int count_ = 0;
};

// ---- computation of known time

// Sleeps: the processor is free for the communication threads, and nothing disturbs the clock.
struct Pause : torch::autograd::Function<Pause> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, double forward_ms,
                               double backward_ms) {
    context->saved_data["ms"] = backward_ms;
    pause(forward_ms);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradient) {
    pause(context->saved_data["ms"].toDouble());
    return {gradient[0], {}, {}};
  }
  static void pause(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }
};

constexpr int64_t kWidth = 256;
constexpr double kForwardMs = 6, kBackwardMs = 12;
constexpr int kBlocks = 6;

// Two layers, between which it computes for a known time, forward and backward.
struct PausingBlock : torch::nn::Module {
  PausingBlock() {
    const auto options = torch::nn::LinearOptions(kWidth, kWidth).bias(false);
    up = register_module("up", torch::nn::Linear(options));
    down = register_module("down", torch::nn::Linear(options));
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(Pause::apply(up(x), kForwardMs, kBackwardMs)); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// The root has a block of its own, and others behind it.
struct PausingModel : torch::nn::Module {
  PausingModel() {
    own = register_module("own", std::make_shared<PausingBlock>());
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<PausingBlock>());
    register_module("blocks", blocks);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = own->forward(x);
    for (const auto& block : *blocks) x = block->as<PausingBlock>()->forward(x);
    return x;
  }
  std::shared_ptr<PausingBlock> own;
  torch::nn::ModuleList blocks;
};

Milliseconds run_pauses(const Setting& setting, int steps) {
  const World world = setting.connect();
  const Mesh mesh = setting.mesh(world);
  ShardOptions options;
  options.strategy = setting.strategy;
  options.schedule = setting.schedule;
  torch::manual_seed(1);
  const auto model = std::make_shared<PausingModel>();
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, options);
  Unit root = fully_shard(*model, mesh, options);
  SGD optimizer(parameters(*model), {.lr = 1e-3});
  const torch::Tensor x = torch::ones({1, kWidth});
  return time_steps(steps, [&] {
    for (int i = 0; i < setting.microbatches; ++i) {
      const Microbatch scope(root, i + 1 == setting.microbatches);
      model->forward(x).sum().backward();
    }
    optimizer.step();
    zero_grad(*model);
  });
}

double plan_pauses(const Setting& setting) {
  pt::StepWork work;
  const int64_t bytes = 2 * kWidth * kWidth * 4;
  for (int i = 0; i < kBlocks; ++i) work.units.push_back({"blocks." + std::to_string(i), kBlocks, bytes, bytes});
  work.units.push_back({"root", -1, bytes, bytes});
  for (int i = -1; i < kBlocks; ++i) {
    pt::Passage passage;
    passage.unit = i < 0 ? kBlocks : i;
    work.passages.push_back(passage);
  }
  work.dtype = pt::Dtype::kFp32;
  work.strategy = setting.strategy;
  work.schedule = setting.schedule;
  work.microbatches = setting.microbatches;
  work.shard_ranks = setting.ranks / setting.replicas;
  work.replica_ranks = setting.replicas;
  work.ranks_per_node = setting.ranks;
  pt::Hardware hardware = pt::find_hardware("cpu-core");
  setting.describe_network(hardware);
  pt::StepCosts costs = price(work, hardware);
  costs.forward_ms.assign(work.passages.size(), kForwardMs);
  costs.backward_ms.assign(work.passages.size(), kBackwardMs);
  costs.optimizer_ms = 0;
  return predict(work, costs, pt::Machine::of(hardware)).step_ms;
}

void compare_pauses(int steps) {
  std::vector<Setting> settings;
  const auto add = [&](Strategy strategy, int replicas, const Schedule& schedule, double latency, double speed,
                       int microbatches = 1) {
    settings.push_back({strategy, 4, replicas, schedule, latency, speed, microbatches});
  };
  const Strategy zero3 = Strategy::kOptimGradsParams;
  for (const double speed : {1000.0, 200.0, 60.0, 25.0}) add(zero3, 1, {}, 0.5, speed);
  add(zero3, 1, {}, 5, 1000);
  add(zero3, 1, Schedule::static_order(2), 0.5, 40);
  add(zero3, 1, Schedule::on_demand(), 0.5, 60);
  add(zero3, 1, Schedule::delayed_release(2), 0.5, 60);
  add(zero3, 1, Schedule::fsdp1(false, schedule::BackwardPrefetch::kPost, true), 0.5, 60);
  Schedule unified;
  unified.threads = schedule::CommThreads::kUnified;
  add(zero3, 1, unified, 0.5, 40);
  add(zero3, 1, {}, 0.5, 60, 3);
  add(Strategy::kNoShard, 1, {}, 0.5, 60, 2);
  add(Strategy::kOptim, 1, {}, 0.5, 60, 2);
  add(Strategy::kOptimGrads, 1, {}, 0.5, 60);
  add(Strategy::kHybrid, 2, {}, 0.5, 60);
  add(Strategy::kHybridZero2, 2, {}, 0.5, 60, 2);
  add(Strategy::kHybridOptim, 2, {}, 0.5, 60);
  Errors errors("computation of known time");
  for (const Setting& setting : settings)
    errors.print_row(setting.text(), run_pauses(setting, steps), plan_pauses(setting));
  errors.print_mean();
}

// ---- decoders on calibrated costs

models::DecoderConfig decoder_config(int64_t hidden, int64_t intermediate, int64_t layers, int64_t vocabulary) {
  models::DecoderConfig config = models::family_config("llama");
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.head_dim = 64;
  config.num_attention_heads = hidden / 64;
  config.num_key_value_heads = hidden / 128;
  config.vocab_size = vocabulary;
  return config;
}

Milliseconds run_decoder(const models::DecoderConfig& config, int64_t tokens, const Setting& setting, int steps) {
  const World world = setting.connect();
  ShardOptions options;
  options.strategy = setting.strategy;
  options.schedule = setting.schedule;
  models::Decoder decoder(config);
  fill_weights(decoder);
  train::ShardedModel model = train::parallelize(std::move(decoder), setting.mesh(world), options);
  AdamW optimizer(parameters(*model.decoder), {.lr = 1e-4});
  const at::Tensor ids = make_tokens(tokens, 0, config.vocab_size);
  const at::Tensor inputs = ids.narrow(0, 0, tokens).unsqueeze(0), targets = ids.narrow(0, 1, tokens);
  return time_steps(steps, [&] {
    for (int i = 0; i < setting.microbatches; ++i) {
      const Microbatch scope(model.root, i + 1 == setting.microbatches);
      model.decoder->loss(inputs, targets).backward();
    }
    optimizer.step();
    zero_grad(*model.decoder);
  });
}

double plan_decoder(const models::DecoderConfig& config, int64_t tokens, const Setting& setting,
                    pt::Hardware hardware) {
  pt::DecoderSetup setup;
  setup.sequence_length = tokens;
  setup.microbatches = setting.microbatches;
  setup.dtype = pt::Dtype::kFp32;
  setup.gather_bytes = setup.reduce_bytes = 4;
  setup.optimizer_bytes = 28;  // weight, gradient and two moments are read, all but the gradient written
  setup.strategy = setting.strategy;
  setup.schedule = setting.schedule;
  setup.shard_ranks = setting.ranks / setting.replicas;
  setup.replica_ranks = setting.replicas;
  setup.ranks_per_node = setting.ranks;
  setting.describe_network(hardware);
  return predict(decoder_work(pt::DecoderShape::of(config), setup), hardware).step_ms;
}

void compare_decoders(int steps, double seconds) {
  const pt::Hardware hardware = train::calibrate_cpu(at::kFloat, seconds);
  std::printf("calibrated: %s\n\n", to_json(hardware).dump().c_str());
  struct Shape {
    const char* name;
    models::DecoderConfig config;
    int64_t tokens;
  };
  const Shape shapes[] = {{"256 x 6, 512 tokens", decoder_config(256, 768, 6, 4096), 512},
                          {"512 x 4, 512 tokens", decoder_config(512, 1536, 4, 8192), 512},
                          {"512 x 8, 128 tokens", decoder_config(512, 1536, 8, 4096), 128}};
  Errors errors("decoder");
  for (const Shape& shape : shapes) {
    std::vector<Setting> settings;
    for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGrads, Strategy::kOptimGradsParams})
      settings.push_back({strategy, 4, 1, {}, 0.1, 1000, 1});
    settings.push_back({Strategy::kOptimGradsParams, 4, 1, {}, 0.1, 200, 1});
    settings.push_back({Strategy::kOptimGradsParams, 8, 1, Schedule::on_demand(), 0.1, 400, 1});
    settings.push_back({Strategy::kHybrid, 8, 2, {}, 0.1, 400, 2});
    for (const Setting& setting : settings)
      errors.print_row(std::string(shape.name) + ", " + setting.text(),
                       run_decoder(shape.config, shape.tokens, setting, steps),
                       plan_decoder(shape.config, shape.tokens, setting, hardware));
  }
  errors.print_mean();
}

// ---- worlds of many sizes, of which one rank runs: fsdp train --simulate-world

// The machine is calibrated before each row: on one that others use too, its speed changes.
void compare_worlds(int steps, double seconds) {
  const models::DecoderConfig config = decoder_config(512, 1536, 4, 8192);
  constexpr int64_t kTokens = 512;
  std::vector<Setting> settings;
  for (const int ranks : {2, 8, 32, 128}) {
    for (const double speed : {1000.0, 200.0})
      settings.push_back({Strategy::kOptimGradsParams, ranks, 1, {}, 0.1, speed, 1});
    if (ranks > 2) settings.push_back({Strategy::kHybrid, ranks, ranks / 4, {}, 0.1, 200, 2});
  }
  Errors errors("world, decoder 512 x 4, 512 tokens a rank");
  for (const Setting& setting : settings) {
    const pt::Hardware hardware = train::calibrate_cpu(at::kFloat, seconds);
    errors.print_row(setting.text(), run_decoder(config, kTokens, setting, steps),
                     plan_decoder(config, kTokens, setting, hardware));
  }
  errors.print_mean();
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app("Compares the planner's time with steps that run over a modelled network");
  int steps = 9;
  double seconds = 10;
  bool worlds = false;
  app.add_option("--steps", steps, "that are timed; the median counts")->check(CLI::PositiveNumber);
  app.add_option("--calibration-seconds", seconds, "for measuring this machine; with --worlds, before each row")
      ->check(CLI::PositiveNumber);
  app.add_flag("--worlds", worlds, "one rank of 2, 8, 32 and 128 instead");
  parse_or_exit(app, argc, argv);
  at::set_num_threads(1);
  if (worlds) {
    compare_worlds(steps, seconds);
    return 0;
  }
  compare_pauses(steps);
  compare_decoders(steps, seconds);
  return 0;
}

}  // namespace fsdp::benchmarks::plan_runtime_program
