// plan::inspect() against the runtime: models of plain torch::nn, planned before they have memory, then trained.
#include "fsdp/plan/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "fsdp/fsdp.h"
#include "tests/support/ranks.h"
#include "tests/train/model/held_bytes.h"

namespace fsdp::plan::inspect_test {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;

constexpr int64_t kWidth = 12;

// What the root of a model has of its own.
enum class RootHas { kStemAndHead, kTiedStem, kStem, kHead, kNothing };

// BatchNorm's parameters keep fp32 whatever the precision.
enum class NormOf { kRow, kBatch };

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t index, NormOf of)
      : up(register_module("up", torch::nn::Linear(kWidth, 20 + index))),
        down(register_module("down", torch::nn::Linear(20 + index, kWidth))),
        down_again(register_module("down_again", down)) {
    if (of == NormOf::kBatch) batch_norm = register_module("norm", torch::nn::BatchNorm1d(20 + index));
    if (of == NormOf::kRow)
      norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({20 + index})));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = up(x);
    return x + down_again(torch::relu(norm ? norm(y) : batch_norm(y)));
  }
  torch::nn::Linear up, down, down_again;  // one module under two names
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
};
TORCH_MODULE(Block);

struct Network : torch::nn::Module {
  Network(RootHas root, int64_t num_blocks, NormOf norm) : has(root) {
    if (has != RootHas::kHead && has != RootHas::kNothing)
      stem = register_module("stem", torch::nn::Linear(kWidth, kWidth));
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(Block(i, norm));
    register_module("blocks", blocks);
    if (has == RootHas::kStemAndHead || has == RootHas::kHead)
      head = register_module("head", torch::nn::Linear(kWidth, 3));
    if (has == RootHas::kTiedStem) head = register_module("head", stem);
  }
  torch::Tensor forward(torch::Tensor x) {
    if (stem) x = stem(x);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head ? head(x) : x;
  }
  std::vector<torch::nn::Module*> units() const {
    std::vector<torch::nn::Module*> list;
    for (const auto& block : *blocks) list.push_back(block.get());
    return list;
  }
  RootHas has;
  torch::nn::Linear stem{nullptr}, head{nullptr};
  torch::nn::ModuleList blocks;
};

struct Case {
  RootHas root = RootHas::kStemAndHead;
  int64_t blocks = 4;
  NormOf norm = NormOf::kRow;
  int replicas = 1, shards = 2;
  int microbatches = 1;
  std::string frozen;  // parameters whose name contains it
  ShardOptions shard;

  std::shared_ptr<Network> make() const {
    auto model = std::make_shared<Network>(root, blocks, norm);
    for (auto& item : model->named_parameters()) {
      if (!frozen.empty() && item.key().find(frozen) != std::string::npos) item.value().requires_grad_(false);
    }
    return model;
  }
  InspectOptions options(const Network& model) const {
    InspectOptions options;
    options.shard = shard;
    options.units = model.units();
    options.work.microbatches = microbatches;
    options.transport = Transport::kGloo;
    return options;
  }
};

Mesh mesh_of(const World& world, const Case& each) {
  return {world, {{"replicate", each.replicas}, {"shard", each.shards}}};
}

Report plan_of(const Case& each) {
  World nobody;
  nobody.size = each.replicas * each.shards;
  const auto model = deferred([&] { return each.make(); });
  const Report report = inspect(*model, mesh_of(nobody, each), each.options(*model));
  for (const at::Tensor& parameter : model->parameters()) EXPECT_TRUE(is_deferred(parameter));
  return report;
}

void train_and_compare(const World& world, const Case& each, const Report& plan) {
  const auto model = testing::make_seeded(3, [&] { return each.make(); });
  const Mesh mesh = mesh_of(world, each);
  for (torch::nn::Module* unit : model->units()) fully_shard(*unit, mesh, each.shard);
  Unit root = fully_shard(*model, mesh, each.shard);
  AdamW optimizer(parameters(*model), {});
  const at::Tensor x = torch::ones({4, kWidth}, each.shard.precision.param.value_or(at::kFloat));
  for (int step = 0; step < 3; ++step) {
    root.reset_counters();
    for (int i = 0; i < each.microbatches; ++i) {
      const Microbatch scope(root, i + 1 == each.microbatches);
      model->forward(x).sum().backward();
    }
    optimizer.step();
    zero_grad(*model);
  }
  const RestingBytes rest = root.resting_bytes();
  EXPECT_EQ(plan.memory[Part::kMainWeight], rest.main_weight);
  EXPECT_EQ(plan.memory[Part::kModelWeight], rest.model_weight);
  EXPECT_EQ(plan.memory[Part::kMainGrad], rest.main_grad);
  EXPECT_EQ(plan.memory.padding, rest.padding);
  EXPECT_EQ(plan.memory[Part::kOptimizer], optimizer.state_bytes());
  EXPECT_EQ(plan.parameters, root.num_parameters());
  const Counters counters = root.counters();
  EXPECT_EQ(plan.step.calls.gathers, counters.gathers);
  EXPECT_EQ(plan.step.calls.reduces, counters.reduces);
  EXPECT_EQ(plan.step.calls.gather_bytes, counters.gather_bytes);
  EXPECT_EQ(plan.step.calls.reduce_bytes, counters.reduce_bytes);
  EXPECT_EQ(plan.step.peak_unsharded_bytes, counters.peak_unsharded_bytes);
  if (each.norm == NormOf::kBatch) return;  // in bf16 its units train two groups
  EXPECT_EQ(plan.step.peak_reduce_bytes, counters.peak_reduce_bytes);
  const MemoryCategories memory = root.memory();
  EXPECT_EQ(plan.step.held_bytes, memory.gathered + memory.reduce + memory.idle);
}

void compare(const Case& each) {
  const Report plan = plan_of(each);
  const std::string trace =
      describe(plan.setup) + ", root " + std::to_string(static_cast<int>(each.root)) + ", frozen '" + each.frozen + "'";
  SCOPED_TRACE(trace);
  run_ranks(each.replicas * each.shards, [&](const World& world) {
    SCOPED_TRACE(trace);
    train_and_compare(world, each, plan);
  });
}

constexpr Strategy kOneAxis[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                 Strategy::kOptimGradsParams};
constexpr Strategy kTwoAxes[] = {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim};

TEST(Inspect, EveryStrategyToTheByte) {
  for (const Precision& precision : {Precision::fp32(), Precision::bf16()}) {
    Case each;
    each.shard.precision = precision;
    for (const Strategy strategy : kOneAxis) {
      each.shard.strategy = strategy;
      for (each.shards = 2; each.shards <= 3; ++each.shards) compare(each);
    }
    each.replicas = each.shards = 2;
    for (const Strategy strategy : kTwoAxes) {
      each.shard.strategy = strategy;
      compare(each);
    }
  }
}

TEST(Inspect, EveryPlaceOfTheRootsOwnParameters) {
  for (const RootHas root : {RootHas::kTiedStem, RootHas::kStem, RootHas::kHead, RootHas::kNothing}) {
    for (const Strategy strategy : {Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      Case each;
      each.root = root;
      each.shard.strategy = strategy;
      compare(each);
      each.microbatches = 3;
      each.shard.schedule = schedule::Schedule::static_order(2);
      compare(each);
    }
  }
}

TEST(Inspect, FrozenParts) {
  for (const char* frozen : {"stem", "blocks.0", "blocks.2", "down", "bias", "head"}) {
    for (const Strategy strategy : {Strategy::kOptim, Strategy::kOptimGradsParams}) {
      Case each;
      each.frozen = frozen;
      each.shard.strategy = strategy;
      each.shard.precision = Precision::bf16();
      compare(each);
    }
  }
}

TEST(Inspect, ModulesThatKeepTheirType) {
  for (const Strategy strategy : kOneAxis) {
    Case each;
    each.norm = NormOf::kBatch;
    each.shard.strategy = strategy;
    each.shard.precision = Precision::bf16();
    compare(each);
  }
}

// As shard_where() chooses; a real model gives the same report and keeps its values.
TEST(Inspect, UnitsOfAPolicyAndARealModel) {
  Case each;
  const auto model = testing::make_seeded(5, [&] { return each.make(); });
  const at::Tensor before = torch::nn::utils::parameters_to_vector(model->parameters()).clone();
  InspectOptions options = each.options(*model);
  options.units.clear();
  options.where = by_type<BlockImpl>();
  World nobody;
  nobody.size = 2;
  EXPECT_EQ(to_json(inspect(*model, mesh_of(nobody, each), options)), to_json(plan_of(each)));
  EXPECT_TRUE(torch::equal(before, torch::nn::utils::parameters_to_vector(model->parameters())));
}

// ---- activations

struct TextModel : torch::nn::Module {
  explicit TextModel(bool recomputes) : recomputes(recomputes) {
    table = register_module("table", torch::nn::Embedding(50, kWidth));
    for (int i = 0; i < 3; ++i) {
      const std::string number = std::to_string(i);
      norms.push_back(register_module("norm" + number, torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
      queries.push_back(register_module("qkv" + number, torch::nn::Linear(kWidth, 3 * kWidth)));
      outs.push_back(register_module("out" + number, torch::nn::Linear(kWidth, kWidth)));
    }
    head = register_module("head", torch::nn::Linear(kWidth, 50));
  }
  torch::Tensor block(size_t i, const torch::Tensor& x) {
    const auto parts = queries[i](norms[i](x)).view({x.size(0), x.size(1), 3, 2, kWidth / 2}).permute({2, 0, 3, 1, 4});
    const torch::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return x + torch::relu(torch::gelu(outs[i](y.transpose(1, 2).reshape(x.sizes()))));
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    torch::Tensor x = table(ids);
    for (size_t i = 0; i < norms.size(); ++i) {
      const auto run = [this, i](const torch::Tensor& input) { return block(i, input); };
      x = recomputes ? recompute(run, x) : run(x);
    }
    return torch::cross_entropy_loss(head(x).flatten(0, 1), ids.flatten()) + torch::mse_loss(x, torch::zeros_like(x));
  }
  std::vector<torch::nn::Module*> units() const {
    std::vector<torch::nn::Module*> list;
    for (const auto& each : outs) list.push_back(each.ptr().get());
    return list;
  }
  bool recomputes;
  torch::nn::Embedding table{nullptr};
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> queries, outs;
  torch::nn::Linear head{nullptr};
};

// What the graph of a real forward holds, its loss included.
int64_t bytes_of_forward(TextModel& model, const at::Tensor& ids) {
  const auto account = std::make_shared<testing::HeldBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, account);
  const at::Tensor loss = model.loss(ids);
  return account->held();
}

Report report_with_activations(TextModel& model, const at::Tensor& ids, const Precision& precision = {}) {
  InspectOptions options;
  options.shard.precision = precision;
  options.units = model.units();
  options.forward = [&] { return model.loss(ids); };
  World nobody;
  nobody.size = 4;
  return inspect(model, Mesh::shard(nobody), options);
}

const Moment& loss_moment(const Report& report) {
  return *std::find_if(report.step.moments.begin(), report.step.moments.end(),
                       [](const Moment& moment) { return moment.phase == Moment::Phase::kLoss; });
}

TEST(Inspect, KeptActivationsAreThoseOfARealForward) {
  const at::Tensor ids = torch::arange(2 * 16).view({2, 16}) % 50;
  for (const bool recomputes : {false, true}) {
    TextModel real(recomputes);
    // Of a region also the random numbers' state, which is no tensor of an operator.
    const auto state = static_cast<int64_t>(at::globalContext().defaultGenerator(at::kCPU).get_state().nbytes());
    const int64_t kept = bytes_of_forward(real, ids) - (recomputes ? 3 * state : 0);
    EXPECT_EQ(loss_moment(report_with_activations(real, ids)).activations, kept) << recomputes;
    const auto put_off = deferred([&] { return std::make_shared<TextModel>(recomputes); });
    const Report report = report_with_activations(*put_off, ids);
    EXPECT_EQ(loss_moment(report).activations, kept) << recomputes;
    EXPECT_GE(report.memory[Part::kActivations] + report.memory[Part::kLoss], kept);
    for (const at::Tensor& parameter : put_off->parameters()) {
      EXPECT_TRUE(is_deferred(parameter));
      EXPECT_FALSE(parameter.grad().defined());
    }
    // It trains as if nothing had been.
    real.loss(ids).backward();
    for (const at::Tensor& parameter : real.parameters()) EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
}

TEST(Inspect, ActivationsAreOfTheTypeComputedWith) {
  const at::Tensor ids = torch::arange(2 * 16).view({2, 16}) % 50;
  const auto put_off = deferred([] { return std::make_shared<TextModel>(false); });
  const Report report = report_with_activations(*put_off, ids, Precision::bf16());
  TextModel wide(false);
  EXPECT_EQ(loss_moment(report_with_activations(wide, ids, Precision::bf16())).activations,
            loss_moment(report).activations);
  EXPECT_EQ(wide.head->weight.scalar_type(), torch::kFloat);
  TextModel real(false);
  real.to(torch::kBFloat16);
  EXPECT_EQ(loss_moment(report).activations, bytes_of_forward(real, ids));
  materialize_all();
  EXPECT_EQ(put_off->head->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(put_off->head->weight.isfinite().all().item<bool>());
}

TEST(Inspect, APassLeavesRandomNumbersAndMemoryAlone) {
  TextModel model(false);
  const at::Tensor ids = torch::zeros({4, 32}, torch::kLong);
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor state = generator.get_state();
  InspectOptions options;
  options.forward = [&] { return torch::dropout(model.loss(ids), 0.5, true) + torch::randn({3}).sum(); };
  World nobody;
  const Report report = inspect(model, Mesh::shard(nobody), options);
  EXPECT_GT(report.memory[Part::kActivations], 0);
  EXPECT_TRUE(torch::equal(state, generator.get_state()));
}

// ---- refusals

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  return "";
}

TEST(Inspect, WhatItCannotPlanIsRefusedByName) {
  Case each;
  const auto model = each.make();
  World nobody;
  nobody.size = 2;
  const auto refusal = [&](const std::function<void(InspectOptions&)>& change) {
    InspectOptions options = each.options(*model);
    change(options);
    return refusal_of([&] { inspect(*model, Mesh::shard(nobody), options); });
  };
  EXPECT_THAT(refusal([&](auto& options) { options.units.push_back(model->blocks[0]->as<BlockImpl>()->up.get()); }),
              HasSubstr("'blocks.0.up' lies in two units"));
  EXPECT_THAT(refusal([&](auto& options) { options.units.push_back(model.get()); }), HasSubstr("the root itself"));
  torch::nn::Linear stranger(2, 2);
  EXPECT_THAT(refusal([&](auto& options) { options.units.push_back(stranger.get()); }), HasSubstr("below the root"));
  EXPECT_THAT(refusal([](auto& options) { options.shard.mesh_of = [](auto&) { return std::nullopt; }; }),
              HasSubstr("mesh_of"));
  EXPECT_THAT(refusal([](auto& options) { options.shard.strategy = Strategy::kHybrid; }), HasSubstr("replicate"));
  EXPECT_THAT(refusal([](auto& options) { options.shard.reshard_after_forward = 3; }), HasSubstr("divisor"));
  EXPECT_THAT(refusal([](auto& options) {
                options.forward = [] { return torch::ones({1}) * torch::ones({1}).sum().template item<float>(); };
              }),
              HasSubstr("aten::_local_scalar_dense reads values"));
  const World alone = comm::connect_alone();
  fully_shard(*model, Mesh::shard(alone));
  EXPECT_THAT(refusal([](auto&) {}), HasSubstr("is sharded already"));
}

}  // namespace
}  // namespace fsdp::plan::inspect_test
