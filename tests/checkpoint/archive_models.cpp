#include "tests/checkpoint/archive_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/support/ranks.h"

namespace fsdp::testing {
namespace {

namespace nn = torch::nn;

ArchiveModel row_of_layers() {
  const auto module = std::make_shared<nn::SequentialImpl>(
      nn::Linear(kArchiveFeatures, 41), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({41})), nn::Linear(41, 3));
  const auto loss = [module](const torch::Tensor& rows) { return module->forward(rows).square().mean(); };
  return {module, {}, {}, loss};
}

struct Block : nn::Module {
  Block() {
    up = register_module("up", nn::Linear(kArchiveFeatures, 50));
    down = register_module("down", nn::Linear(nn::LinearOptions(50, kArchiveFeatures).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::tanh(up(x))); }
  nn::Linear up{nullptr};
  nn::Linear down{nullptr};
};

// The root has parameters before and after those of its inner units.
struct Nested : nn::Module {
  Nested() {
    scale = register_parameter("scale", torch::randn({kArchiveFeatures}));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<Block>());
    head = register_module("head", nn::Linear(kArchiveFeatures, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x * scale;
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x);
  }
  torch::Tensor scale;
  nn::ModuleList blocks{nullptr};
  nn::Linear head{nullptr};
};

ArchiveModel nested() {
  const auto module = std::make_shared<Nested>();
  ArchiveModel model{module, {}, {}, {}};
  for (const auto& block : *module->blocks) model.units.push_back(block);
  model.loss = [module](const torch::Tensor& rows) { return module->forward(rows).square().mean(); };
  return model;
}

struct Convolutions : nn::Module {
  Convolutions() {
    first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(8));
    second = register_module("second", nn::Conv2d(8, 4, 3));
    // Has neither parameters nor buffers.
    bare = register_module("bare", nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false).track_running_stats(false)));
    head = register_module("head", nn::Linear(64, 3));
    head->bias.requires_grad_(false);
    offset = register_parameter("offset", torch::randn({64, 64}) * 0.1);
    table = register_buffer("table", torch::randn({40, 64}) * 0.1);
  }
  torch::Tensor forward(const torch::Tensor& rows) {
    const torch::Tensor image = rows.view({-1, 1, 6, 6});
    const torch::Tensor x = second(torch::relu(norm(first(image)))).flatten(1);
    return head(torch::matmul(x, offset) + table.sum(0));
  }
  nn::Conv2d first{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Conv2d second{nullptr};
  nn::BatchNorm2d bare{nullptr};
  nn::Linear head{nullptr};
  torch::Tensor offset;
  torch::Tensor table;
};

ArchiveModel convolutions() {
  const auto module = std::make_shared<Convolutions>();
  const auto loss = [module](const torch::Tensor& rows) { return module->forward(rows).square().mean(); };
  return {module, {module->first.ptr(), module->second.ptr()}, {module->offset}, loss};
}

struct Tied : nn::Module {
  Tied() {
    inlet = register_module("inlet", nn::Linear(nn::LinearOptions(kArchiveFeatures, 48).bias(false)));
    block = register_module("block", nn::Linear(48, 48));
    weight = register_parameter("outlet", inlet->weight);
  }
  torch::Tensor forward(const torch::Tensor& rows) { return torch::matmul(torch::tanh(block(inlet(rows))), weight); }
  nn::Linear inlet{nullptr};
  nn::Linear block{nullptr};
  torch::Tensor weight;
};

ArchiveModel tied() {
  const auto module = std::make_shared<Tied>();
  const auto loss = [module](const torch::Tensor& rows) { return module->forward(rows).square().mean(); };
  return {module, {module->block.ptr()}, {}, loss};
}

ArchiveModel tiny() {
  const auto module = std::make_shared<nn::SequentialImpl>(nn::Linear(kArchiveFeatures, 1), nn::Linear(1, 1));
  const auto loss = [module](const torch::Tensor& rows) { return module->forward(rows).square().mean(); };
  return {module, {module->ptr(1)}, {}, loss};
}

Mesh mesh_of(const Sharding& sharding, const World& world) {
  if (sharding.replicas == 1) return Mesh::shard(world);
  return Mesh(world, {{"replicate", sharding.replicas}, {"shard", sharding.ranks / sharding.replicas}});
}

void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double tolerance,
                  const std::string& name) {
  const bool same = tolerance == 0 ? torch::equal(actual, expected) : torch::allclose(actual, expected, 0, tolerance);
  EXPECT_TRUE(same) << name;
}

}  // namespace

const std::vector<ArchiveCase>& archive_cases() {
  static const std::vector<ArchiveCase> cases = {{"row of layers", row_of_layers},
                                                 {"nested", nested},
                                                 {"convolutions", convolutions},
                                                 {"tied", tied},
                                                 {"tiny", tiny}};
  return cases;
}

const ArchiveCase& archive_case(const std::string& name) {
  for (const ArchiveCase& candidate : archive_cases()) {
    if (candidate.name == name) return candidate;
  }
  throw std::logic_error("no such model: " + name);
}

std::string Sharding::text() const {
  return c10::str(name(strategy), ", ", ranks, " ranks, ", replicas, " replicas, ", precision.param ? "bf16" : "fp32");
}

ArchiveModel make_model(const ArchiveCase& archive_case, uint64_t seed) {
  ArchiveModel model = make_seeded(seed, archive_case.make);
  model.module->eval();
  return model;
}

ShardedModel make_sharded(const ArchiveCase& archive_case, uint64_t seed, const Sharding& sharding,
                          const World& world) {
  ArchiveModel model = make_model(archive_case, seed);
  ShardOptions options;
  options.strategy = sharding.strategy;
  options.precision = sharding.precision;
  options.ignored_parameters = model.ignored;
  const Mesh mesh = mesh_of(sharding, world);
  for (const auto& unit : model.units) fully_shard(*unit, mesh, options);
  const Unit root = fully_shard(*model.module, mesh, options);
  return {model, root};
}

std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<torch::Tensor> list;
  for (const torch::Tensor& parameter : module.parameters()) {
    const bool listed =
        std::any_of(list.begin(), list.end(), [&](const auto& other) { return other.is_same(parameter); });
    if (!listed) list.push_back(parameter);
  }
  return list;
}

void scale_weights(const ArchiveModel& model, double factor) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : distinct_parameters(*model.module)) parameter.mul_(factor);
}

void scale_leaves(const ArchiveModel& model, double factor) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& leaf : parameters(*model.module)) leaf.mul_(factor);
}

void expect_same_values(const torch::nn::Module& sharded, const torch::nn::Module& whole, double tolerance) {
  const auto expected = whole.named_parameters();
  for (const auto& [name, leaf] : named_parameters(sharded)) {
    const LocalRange range = local_range(leaf);
    const torch::Tensor slice = expected[name].detach().flatten().slice(0, range.begin, range.end);
    expect_close(leaf.detach().flatten(), slice, tolerance, name);
  }
  const auto buffers = whole.named_buffers();
  for (const auto& buffer : sharded.named_buffers()) {
    expect_close(buffer.value(), buffers[buffer.key()], tolerance, buffer.key());
  }
}

}  // namespace fsdp::testing
