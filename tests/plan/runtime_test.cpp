// Plans against runs: real decoders, all strategies, and every count and byte of the runtime's own account.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <random>
#include <string_view>

#include "fsdp/fsdp.h"
#include "kernels/products/fp8_weights.h"
#include "models/decoder.h"
#include "models/lora.h"
#include "plan/report.h"
#include "tests/plan/runtime_counts.h"
#include "tests/plan/small_decoder.h"
#include "tests/support/ranks.h"
#include "train/model/parallelize.h"

namespace fsdp::plan::runtime_test {
namespace {

using testing::run_ranks;

at::ScalarType torch_type(io::DType dtype) {
  if (dtype == io::DType::F16) return at::kHalf;
  return dtype == io::DType::BF16 ? at::kBFloat16 : at::kFloat;
}

// The same choices for the runtime.
ShardOptions options_of(const Setup& setup) {
  ShardOptions options;
  options.strategy = setup.strategy;
  options.precision.param = torch_type(*setup.precision.param);
  options.precision.reduce = torch_type(*setup.precision.reduce);
  options.precision.accumulate = torch_type(*setup.precision.accumulate);
  if (setup.reshard_after_forward) {
    const auto* group = std::get_if<int64_t>(&*setup.reshard_after_forward);
    if (group != nullptr) options.reshard_after_forward = static_cast<int>(*group);
    if (group == nullptr) options.reshard_after_forward = std::get<bool>(*setup.reshard_after_forward);
  }
  options.replica_reduce = setup.replica_reduce;
  options.layout = {setup.granularity, setup.block};
  options.schedule = setup.schedule;
  if (setup.whole_shard == WholeShard::kCopied) options.whole_weights = WholeWeights::kCopied;
  return options;
}

// Every setup runs over Gloo and over one of the three other transports, told by what it is called; with
// FSDP_TEST_PLANS=all over each.
bool is_for_this_transport(const std::string& setup) {
  const char* plans = std::getenv("FSDP_TEST_PLANS");
  if (plans != nullptr && std::string(plans) == "all") return true;
  constexpr std::array<std::string_view, 3> kOthers = {"shm", "shm-copies", "two-level"};
  const auto* place = std::find(kOthers.begin(), kOthers.end(), testing::transport_name());
  return place == kOthers.end() || std::hash<std::string>{}(setup) % 3 == static_cast<size_t>(place - kOthers.begin());
}

// What the ranks of this process talk over; see tests/support/ranks.h.
void choose_transport(Setup& setup) {
  comm::ConnectOptions options;
  testing::choose_transport(options);
  const std::string name = testing::transport_name();
  setup.transport = name == "gloo"        ? Transport::kGloo
                    : name == "two-level" ? Transport::kTwoLevel
                                          : Transport::kSharedMemory;
  setup.copies = testing::one_copy_of_weights() ? GatheredCopies::kOnePerHost : GatheredCopies::kPerRank;
  setup.node_size = name == "two-level" ? std::max<int64_t>(1, setup.world() / 2) : setup.world();
}

// Whether the parameter of that name trains; empty: all do.
using Trains = std::function<bool(const std::string& name)>;

AdamW make_optimizer(const torch::nn::Module& model, const AdamWOptions& options) {
  return {parameters(model), options};
}
SGD make_optimizer(const torch::nn::Module& model, const SGDOptions& options) { return {parameters(model), options}; }
Lion make_optimizer(const torch::nn::Module& model, const LionOptions& options) { return {parameters(model), options}; }
Muon make_optimizer(const torch::nn::Module& model, const MuonOptions& options) {
  return {muon_groups(model, /*weight_decay=*/0.1), options, {}};
}

Adafactor make_optimizer(const torch::nn::Module& model, const AdafactorOptions& options) {
  return {adafactor_groups(model, /*weight_decay=*/0.1), options, {}};
}

std::optional<LayoutOptions> blocks_of(const Setup& setup) {
  if (!plan::has_owners(setup.optimizer)) return {};
  return LayoutOptions{.granularity = layout::Granularity::kTensor, .owners = layout::Owners::kBalanced};
}

// Of any rank.
int64_t most(const World& world, int64_t bytes) {
  at::Tensor all = at::zeros({world.size}, at::kDouble);
  all[world.rank] = static_cast<double>(bytes);
  return static_cast<int64_t>(sum_over_ranks(world, all).max().item<double>());
}

template <class Options>
void train_and_compare(const World& world, const models::DecoderConfig& config, const Report& plan,
                       const Trains& trains, Travel travel, Options options) {
  const Setup& setup = plan.setup;
  auto decoder = testing::make_seeded(7, [&] {
    models::Decoder made(config);
    made->reset_parameters(7);
    return made;
  });
  for (auto& item : decoder->named_parameters()) item.value().requires_grad_(!trains || trains(item.key()));
  const Mesh mesh(world, {{"replicate", static_cast<int>(setup.replicas)}, {"shard", static_cast<int>(setup.shards)}});
  ShardOptions shard_options = options_of(setup);
  if (travel == Travel::kAsFp8) {
    shard_options.precision.gather = at::kFloat8_e4m3fn;
    for (const auto& map : models::linears_in_blocks(decoder))
      kernels::set_fp8(map.module->weight, Fp8Recipe::kTensorwise);
  }
  train::ShardedModel model = train::parallelize(std::move(decoder), mesh, shard_options, blocks_of(setup));
  auto optimizer = make_optimizer(*model.decoder, options);
  const at::Tensor ids = at::arange(2 * 5, at::kLong).view({2, 5}) % 67;
  const at::Tensor targets = models::shift_labels(ids).flatten();
  for (int step = 0; step < 3; ++step) {
    model.root.reset_counters();
    for (int64_t i = 0; i < setup.work.microbatches; ++i) {
      const Microbatch scope(model.root, i + 1 == setup.work.microbatches);
      model.decoder->loss(ids, targets).backward();
    }
    optimizer.step();
    zero_grad(*model.decoder);
  }
  const RestingBytes rest = model.root.resting_bytes();
  expect_rest(plan, rest);
  EXPECT_EQ(plan.memory.padding, rest.padding);
  EXPECT_EQ(plan.memory[Part::kOptimizer], most(world, optimizer.state_bytes()));
  EXPECT_EQ(plan.parameters, model.root.num_parameters());
  expect_counts(plan, model.root.counters());
  const MemoryCategories memory = model.root.memory();
  // A plan is rank 0's. Where groups lie across hosts and others do not, some ranks need other scratch.
  const bool all_alike = setup.node_size % setup.shards == 0 || setup.shards % setup.node_size == 0;
  if (all_alike || world.rank == 0) {
    EXPECT_EQ(plan.step.held_bytes, memory.gathered + memory.reduce + memory.idle);
  }
}

PlannedModel planned(const models::DecoderConfig& config, const Trains& trains, Travel travel) {
  PlannedModel model = decoder_model("small", config);
  const auto mark = [&](PlannedUnit& unit) {
    for (PlannedParameter& parameter : unit.parameters) parameter.trains = !trains || trains(parameter.name);
  };
  for (PlannedUnit& block : model.blocks) {
    mark(block);
    for (PlannedParameter& parameter : block.parameters)
      if (parameter.shape.size() == 2) parameter.travel = travel;
  }
  mark(model.root);
  return model;
}

void compare(const models::DecoderConfig& config, Setup setup, const Trains& trains = {},
             Travel travel = Travel::kAsComputed) {
  const std::string name = describe(setup) + ", " + schedule::describe(setup.schedule) + ", " +
                           std::to_string(config.num_hidden_layers) + " layers";
  if (!is_for_this_transport(name)) return;
  choose_transport(setup);
  const Report plan = make_report(planned(config, trains, travel), setup);
  SCOPED_TRACE(name);
  run_ranks(static_cast<int>(setup.world()), [&](const World& world) {
    SCOPED_TRACE(describe(setup) + ", " + schedule::describe(setup.schedule) + ", rank " + std::to_string(world.rank));
    if (setup.optimizer == Optimizer::kAdamW) {
      train_and_compare(world, config, plan, trains, travel, AdamWOptions{});
    } else if (setup.optimizer == Optimizer::kMuon) {
      train_and_compare(world, config, plan, trains, travel, MuonOptions{});
    } else if (setup.optimizer == Optimizer::kAdafactor) {
      train_and_compare(world, config, plan, trains, travel, AdafactorOptions{});
    } else if (setup.optimizer == Optimizer::kLion) {
      train_and_compare(world, config, plan, trains, travel, LionOptions{});
    } else {
      SGDOptions options;
      options.momentum = setup.optimizer == Optimizer::kSgdMomentum ? 0.9 : 0;
      train_and_compare(world, config, plan, trains, travel, options);
    }
  });
}

constexpr Strategy kOfOneAxis[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                   Strategy::kOptimGradsParams};
constexpr Strategy kHybrids[] = {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim};

Setup setup_of(Strategy strategy, int64_t replicas, int64_t shards, const char* precision) {
  Setup setup;
  setup.strategy = strategy;
  setup.replicas = replicas;
  setup.shards = shards;
  setup.precision = parse_planned_precision(precision);
  return setup;
}

TEST(PlanAgainstRuntime, EveryStrategyAndPrecisionToTheByte) {
  const models::DecoderConfig config = small_decoder(4, false, false);
  for (const char* precision : {"fp32", "bf16", "bf16_reduce", "fp16", "fp16_reduce"}) {
    for (const Strategy strategy : kOfOneAxis) {
      for (const int64_t ranks : {1, 2, 3, 4}) compare(config, setup_of(strategy, 1, ranks, precision));
      compare(config, setup_of(strategy, 2, 2, precision));
    }
    for (const Strategy strategy : kHybrids) compare(config, setup_of(strategy, 2, 2, precision));
    for (const Strategy strategy : kHybrids) compare(config, setup_of(strategy, 3, 1, precision));
  }
}

TEST(PlanAgainstRuntime, WeightsThatTravelAsFp8) {
  const models::DecoderConfig config = small_decoder(4, false, false);
  for (const char* precision : {"fp32", "bf16"}) {
    for (const Strategy strategy : kOfOneAxis) {
      for (const int64_t ranks : {1, 2, 3})
        compare(config, setup_of(strategy, 1, ranks, precision), {}, Travel::kAsFp8);
    }
    for (const Strategy strategy : kHybrids) compare(config, setup_of(strategy, 2, 2, precision), {}, Travel::kAsFp8);
  }
  plan::Setup copied = setup_of(Strategy::kOptimGradsParams, 1, 1, "bf16");
  copied.whole_shard = WholeShard::kCopied;
  compare(config, copied, {}, Travel::kAsFp8);
  plan::Setup between = setup_of(Strategy::kOptimGradsParams, 1, 4, "bf16");
  between.reshard_after_forward = int64_t{2};
  compare(config, between, {}, Travel::kAsFp8);
}

// Whole matrices, dealt out, and as much state as the fullest rank has.
TEST(PlanAgainstRuntime, MuonAndAdafactor) {
  const models::DecoderConfig config = small_decoder(5, false, false);
  const auto compare_muon = [&](plan::Setup setup) {
    for (const Optimizer optimizer : {Optimizer::kMuon, Optimizer::kAdafactor}) {
      setup.optimizer = optimizer;
      compare(config, setup);
    }
  };
  for (const char* precision : {"fp32", "bf16"}) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      compare_muon(setup_of(Strategy::kOptimGradsParams, 1, ranks, precision));
    }
    compare_muon(setup_of(Strategy::kNoShard, 1, 2, precision));
    compare_muon(setup_of(Strategy::kOptim, 1, 3, precision));
    for (const Strategy strategy : kHybrids) compare_muon(setup_of(strategy, 2, 2, precision));
  }
}

TEST(PlanAgainstRuntime, ManyMicrobatches) {
  const models::DecoderConfig config = small_decoder(3, true, false);
  const std::pair<int64_t, const char*> cases[] = {
      {2, "fp32"}, {3, "fp32"}, {2, "bf16_reduce"}, {3, "fp16_reduce"}, {6, "bf16_reduce"}};
  for (const auto& [microbatches, precision] : cases) {
    for (const Strategy strategy : kOfOneAxis) {
      plan::Setup setup = setup_of(strategy, 1, 2, precision);
      setup.work.microbatches = microbatches;
      compare(config, setup);
    }
    for (const Strategy strategy : kHybrids) {
      plan::Setup setup = setup_of(strategy, 2, 2, precision);
      setup.work.microbatches = microbatches;
      compare(config, setup);
      setup.replica_reduce = ReduceTiming::kEveryMicrobatch;
      compare(config, setup);
    }
  }
}

std::vector<schedule::Schedule> all_kinds_of_schedules() {
  using schedule::Schedule;
  std::vector<Schedule> list = {Schedule::static_order(0),
                                Schedule::static_order(2),
                                Schedule::static_order(3, 9000),
                                Schedule::delayed_release(1),
                                Schedule::delayed_release(2),
                                Schedule::on_demand(),
                                Schedule::fsdp1(true, schedule::BackwardPrefetch::kPost, true),
                                Schedule::fsdp1(false, schedule::BackwardPrefetch::kNone, false)};
  Schedule unified;
  unified.threads = schedule::CommThreads::kUnified;
  list.push_back(unified);
  Schedule early;
  early.release = schedule::ReleaseOrder::kReshardFirst;
  early.forward_depth = 2;
  early.max_gathers_in_flight = 1;
  list.push_back(early);
  return list;
}

TEST(PlanAgainstRuntime, EverySchedule) {
  const models::DecoderConfig config = small_decoder(5, false, true);
  for (const schedule::Schedule& schedule : all_kinds_of_schedules()) {
    for (const Strategy strategy : {Strategy::kOptimGradsParams, Strategy::kOptimGrads, Strategy::kOptim}) {
      plan::Setup setup = setup_of(strategy, 1, 2, "bf16");
      setup.schedule = schedule;
      compare(config, setup);
    }
  }
}

// Frozen parts: groups of their own, that are gathered but not reduced, and a backward that ends where nothing trains.
TEST(PlanAgainstRuntime, FrozenParts) {
  const models::DecoderConfig config = small_decoder(5, false, true);
  const auto has = [](const std::string& part) {
    return [part](const std::string& name) { return name.find(part) != std::string::npos; };
  };
  const auto lacks = [](const std::string& part) {
    return [part](const std::string& name) { return name.find(part) == std::string::npos; };
  };
  const Trains cases[] = {lacks("embed_tokens"), lacks("layers.1."), lacks("layers.0."), has("layers.3.mlp."),
                          has("bias"),           has("norm"),        has("lm_head"),     lacks("q_proj")};
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    for (const Strategy strategy : kOfOneAxis) {
      plan::Setup setup = setup_of(strategy, 1, 2, i % 2 ? "bf16" : "fp32");
      setup.work.microbatches = 1 + static_cast<int64_t>(i % 3);
      compare(config, setup, cases[i]);
    }
    compare(config, setup_of(kHybrids[i % 3], 2, 2, "bf16_reduce"), cases[i]);
  }
}

// Shapes, worlds, strategies, dtypes, layouts, optimizers.
TEST(PlanAgainstRuntime, RandomSetups) {
  const char* given = std::getenv("FSDP_TEST_SEED");
  const auto seed = given != nullptr ? std::stoul(given) : 20261125UL;
  std::printf("seed %lu (FSDP_TEST_SEED chooses another)\n", seed);
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& list) { return list[random() % std::size(list)]; };
  const std::vector<schedule::Schedule> schedules = all_kinds_of_schedules();
  for (int i = 0; i < 40; ++i) {
    const int64_t replicas = pick(std::array<int64_t, 4>{1, 1, 2, 3});
    const int64_t shards = pick(std::array<int64_t, 5>{1, 2, 3, 4, 2});
    plan::Setup setup = setup_of(replicas > 1 && random() % 2 ? pick(kHybrids) : pick(kOfOneAxis), replicas,
                                 replicas == 3 ? std::min<int64_t>(shards, 2) : shards,
                                 pick(std::array<const char*, 3>{"fp32", "bf16", "bf16_reduce"}));
    if (random() % 3 == 0) setup.reshard_after_forward = int64_t{setup.shards % 2 == 0 ? 2 : 1};
    if (random() % 4 == 0) setup.reshard_after_forward = random() % 2 == 0;
    setup.work.microbatches = 1 + static_cast<int64_t>(random() % 5);
    if (random() % 2) setup.schedule = pick(schedules);
    setup.optimizer =
        pick(std::array<Optimizer, 4>{Optimizer::kAdamW, Optimizer::kSgd, Optimizer::kSgdMomentum, Optimizer::kLion});
    setup.granularity = pick(std::array<layout::Granularity, 3>{
        layout::Granularity::kElement, layout::Granularity::kRow, layout::Granularity::kBlock});
    setup.block = 8;
    if (setup.world() == 1 && random() % 2) setup.whole_shard = WholeShard::kCopied;
    if (random() % 2) setup.replica_reduce = ReduceTiming::kEveryMicrobatch;
    compare(small_decoder(1 + static_cast<int64_t>(random() % 6), random() % 2, random() % 2), setup);
  }
}

}  // namespace
}  // namespace fsdp::plan::runtime_test
