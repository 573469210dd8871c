// Files of sharded models are those of unsharded ones: what one writes, the other reads, and the bytes are the same.
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <torch/script.h>

#include <cstring>
#include <set>

#include "fsdp/checkpoint/archive/archive.h"
#include "fsdp/fsdp.h"
#include "tests/checkpoint/archive_models.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::archive_test {
namespace {

using io::read_text;
using io::TemporaryFolder;
using testing::archive_case;
using testing::archive_cases;
using testing::ArchiveCase;
using testing::ArchiveModel;
using testing::expect_same_values;
using testing::kArchiveFeatures;
using testing::make_model;
using testing::make_sharded;
using testing::run_ranks;
using testing::scale_leaves;
using testing::scale_weights;
using testing::ShardedModel;
using testing::Sharding;

constexpr uint64_t kSeed = 11;
constexpr uint64_t kOtherSeed = 12;
constexpr double kFactor = 1.125;

const std::vector<Sharding>& shardings() {
  static const std::vector<Sharding> all = {{Strategy::kOptimGradsParams, 1, 1, {}},
                                            {Strategy::kOptimGradsParams, 2, 1, {}},
                                            {Strategy::kOptimGradsParams, 3, 1, {}},
                                            {Strategy::kNoShard, 2, 1, {}},
                                            {Strategy::kOptim, 3, 1, {}},
                                            {Strategy::kHybrid, 4, 2, {}},
                                            {Strategy::kHybridOptim, 4, 2, {}},
                                            {Strategy::kOptimGradsParams, 2, 1, Precision::bf16()},
                                            {Strategy::kNoShard, 2, 1, Precision::bf16()},
                                            {Strategy::kHybridOptim, 4, 2, Precision::bf16()}};
  return all;
}

Sharding three_ranks() { return {Strategy::kOptimGradsParams, 3, 1, {}}; }

using Body = std::function<void(const ArchiveCase& model, const Sharding& sharding, const World& world)>;

void with_every_model_and_sharding(const Body& body) {
  for (const ArchiveCase& model : archive_cases()) {
    for (const Sharding& sharding : shardings()) {
      SCOPED_TRACE(model.name + ", " + sharding.text());
      run_ranks(sharding.ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(model.name, ", ", sharding.text(), ", rank ", world.rank));
        body(model, sharding, world);
      });
    }
  }
}

// Record by record, to say what differs; then as a whole.
void expect_same_archive(const std::filesystem::path& actual, const std::filesystem::path& expected) {
  caffe2::serialize::PyTorchStreamReader mine(actual.native());
  caffe2::serialize::PyTorchStreamReader theirs(expected.native());
  ASSERT_EQ(mine.getAllRecords(), theirs.getAllRecords());
  for (const std::string& name : theirs.getAllRecords()) {
    const auto [data, size] = mine.getRecord(name);
    const auto [expected_data, expected_size] = theirs.getRecord(name);
    ASSERT_EQ(size, expected_size) << name;
    EXPECT_EQ(std::memcmp(data.get(), expected_data.get(), size), 0) << name;
  }
  EXPECT_TRUE(read_text(actual) == read_text(expected));
}

// The same name in another folder: an archive's records begin with it.
struct Files {
  TemporaryFolder sharded;
  TemporaryFolder whole;
};

std::string in(const TemporaryFolder& folder) { return (folder / "model.v1.pt").native(); }

// What must not change, whatever is saved or loaded.
class Identity {
 public:
  explicit Identity(const torch::nn::Module& module) {
    for (const torch::Tensor& parameter : module.parameters()) {
      tensors_.push_back(parameter);
      states_.push_back(state_of(parameter));
    }
  }

  void expect_unchanged(const torch::nn::Module& module) const {
    const auto parameters = module.parameters();
    ASSERT_EQ(parameters.size(), tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_TRUE(parameters[i].is_same(tensors_[i]));
      EXPECT_EQ(state_of(parameters[i]), states_[i]) << i;
    }
  }

 private:
  static std::string state_of(const torch::Tensor& tensor) {
    return c10::str(tensor.storage().unsafeGetStorageImpl(), ' ', tensor.storage_offset(), ' ', tensor.sizes(),
                    tensor.strides(), tensor.dtype(), tensor.requires_grad(), tensor.is_leaf(),
                    torch::autograd::impl::get_autograd_meta(tensor));
  }

  std::vector<torch::Tensor> tensors_;
  std::vector<std::string> states_;
};

torch::Tensor rows_of(int step) {
  return torch::randn({12, kArchiveFeatures}, testing::generator(static_cast<uint64_t>(100 + step)));
}

torch::Tensor share_of(const World& world, const torch::Tensor& rows) {
  const int64_t share = rows.size(0) / world.size;
  return rows.narrow(0, world.rank * share, share);
}

// Two steps of both.
void train_both(const World& world, ShardedModel& sharded, ArchiveModel& whole, double tolerance) {
  torch::optim::SGD optimizer(parameters(*sharded.model.module), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD whole_optimizer(testing::distinct_parameters(*whole.module),
                                    torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 2; ++step) {
    sharded.model.loss(share_of(world, rows_of(step))).backward();
    // Ignored parameters are the program's business.
    for (torch::Tensor& parameter : sharded.model.ignored) {
      parameter.mutable_grad() = sum_over_ranks(world, parameter.grad()) / world.size;
    }
    optimizer.step();
    zero_grad(*sharded.model.module);
    whole.loss(rows_of(step)).backward();
    whole_optimizer.step();
    whole_optimizer.zero_grad();
  }
  expect_same_values(*sharded.model.module, *whole.module, tolerance);
}

TEST(Archive, EqualsThatOfTheUnshardedModel) {
  Files files;
  with_every_model_and_sharding([&](const ArchiveCase& model, const Sharding& sharding, const World& world) {
    ShardedModel sharded = make_sharded(model, kSeed, sharding, world);
    const ArchiveModel whole = make_model(model, kSeed);
    scale_leaves(sharded.model, kFactor);
    scale_weights(whole, kFactor);
    for (torch::Tensor& buffer : sharded.model.module->buffers()) buffer.add_(world.rank);  // rank 0's count
    const Identity identity(*sharded.model.module);
    const std::vector<torch::Tensor> parameters = sharded.model.module->parameters();
    const auto version = parameters.front()._version();
    fsdp::save(*sharded.model.module, in(files.sharded));
    EXPECT_EQ(parameters.front()._version(), version);
    identity.expect_unchanged(*sharded.model.module);
    if (world.rank == 0) {
      torch::save(whole.module, in(files.whole));
      expect_same_archive(in(files.sharded), in(files.whole));
      EXPECT_EQ(files.sharded.num_files(), 1U);
    }
    barrier(world, "compared");
    EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
  });
}

TEST(Archive, OfAnUnshardedModelGoesIntoAShardedOneThatTrainsOn) {
  Files files;
  with_every_model_and_sharding([&](const ArchiveCase& model, const Sharding& sharding, const World& world) {
    ArchiveModel whole = make_model(model, kOtherSeed);
    if (world.rank == 0) torch::save(whole.module, in(files.whole));
    barrier(world, "written");
    ShardedModel sharded = make_sharded(model, kSeed, sharding, world);
    const bool bf16 = sharding.precision.param.has_value();
    const torch::Tensor rows = share_of(world, rows_of(9));
    if (!bf16) sharded.model.loss(rows).backward();  // gathers, and makes gradient accumulators
    zero_grad(*sharded.model.module);
    const Identity identity(*sharded.model.module);
    fsdp::load(*sharded.model.module, in(files.whole));
    identity.expect_unchanged(*sharded.model.module);
    expect_same_values(*sharded.model.module, *whole.module);
    fsdp::save(*sharded.model.module, in(files.sharded));
    if (world.rank == 0) expect_same_archive(in(files.sharded), in(files.whole));
    barrier(world, "compared");
    if (!bf16) train_both(world, sharded, whole, 1e-5);
  });
}

TEST(Archive, IsReadByTorchLoad) {
  Files files;
  for (const ArchiveCase& model : archive_cases()) {
    const ArchiveModel whole = make_model(model, kOtherSeed);
    run_ranks(3, [&](const World& world) {
      ShardedModel sharded = make_sharded(model, kSeed, three_ranks(), world);
      scale_leaves(sharded.model, kFactor);
      fsdp::save(*sharded.model.module, in(files.sharded));
      if (world.rank == 0) {
        std::shared_ptr<torch::nn::Module> target = whole.module;
        torch::load(target, in(files.sharded));
      }
      barrier(world, "read");
      expect_same_values(*sharded.model.module, *whole.module);
    });
  }
}

// A file written at one world size and strategy is read at every other.
TEST(Archive, MovesBetweenShardings) {
  Files files;
  const ArchiveCase& model = archive_case("nested");
  const ArchiveModel whole = make_model(model, kSeed);
  for (const Sharding& writer : shardings()) {
    run_ranks(writer.ranks, [&](const World& world) {
      fsdp::save(*make_sharded(model, kSeed, writer, world).model.module, in(files.sharded));
    });
    for (const Sharding& reader : {shardings()[2], shardings()[6]}) {
      run_ranks(reader.ranks, [&](const World& world) {
        SCOPED_TRACE(writer.text() + " -> " + reader.text());
        ShardedModel sharded = make_sharded(model, kOtherSeed, reader, world);
        fsdp::load(*sharded.model.module, in(files.sharded));
        expect_same_values(*sharded.model.module, *whole.module);
      });
    }
  }
}

TEST(Archive, OfAnotherDtypeIsConverted) {
  Files files;
  for (const torch::Dtype dtype : {torch::kDouble, torch::kBFloat16}) {
    for (const char* name : {"convolutions", "tiny"}) {
      const ArchiveModel whole = make_model(archive_case(name), kOtherSeed);
      whole.module->to(dtype);
      torch::save(whole.module, in(files.whole));
      whole.module->to(torch::kFloat);
      run_ranks(3, [&](const World& world) {
        ShardedModel sharded = make_sharded(archive_case(name), kSeed, three_ranks(), world);
        fsdp::load(*sharded.model.module, in(files.whole));
        expect_same_values(*sharded.model.module, *whole.module);
        for (const torch::Tensor& parameter : sharded.model.module->parameters()) {
          EXPECT_EQ(parameter.dtype(), torch::kFloat);
        }
      });
    }
  }
}

// Reads a file that LibTorch wrote for `whole`, whatever it looks like inside.
void expect_readable(const std::string& path, const torch::nn::Module& whole) {
  run_ranks(3, [&](const World& world) {
    ShardedModel sharded = make_sharded(archive_case("nested"), kSeed, three_ranks(), world);
    fsdp::load(*sharded.model.module, path);
    expect_same_values(*sharded.model.module, whole);
  });
}

TEST(Archive, MayHaveStridedTensorsAndPartsOfStorages) {
  const TemporaryFolder folder;
  const ArchiveModel whole = make_model(archive_case("nested"), kOtherSeed);
  auto named = whole.module->named_parameters();
  torch::Tensor& strided = named["blocks.0.up.weight"];
  strided.set_data(strided.detach().t().contiguous().t());
  torch::Tensor& part = named["blocks.1.up.weight"];
  part.set_data(torch::stack({part.detach(), part.detach() + 1, part.detach() + 2})[1]);
  torch::Tensor& expanded = named["blocks.2.down.weight"];
  expanded.set_data(expanded.detach().narrow(0, 0, 1).expand(expanded.sizes()));
  torch::save(whole.module, in(folder));
  expect_readable(in(folder), *whole.module);
}

struct WithCopy : torch::nn::Module {
  WithCopy() {
    weight = register_parameter("weight", torch::randn({40, 40}));
    copy = register_buffer("copy", torch::randn({40, 40}));
  }
  torch::Tensor weight;
  torch::Tensor copy;
};

TEST(Archive, MayShareAStorageBetweenAWeightAndABuffer) {
  const TemporaryFolder folder;
  const auto whole = std::make_shared<WithCopy>();
  whole->copy.set_data(whole->weight.detach());
  torch::save(whole, in(folder));
  run_ranks(2, [&](const World& world) {
    const auto sharded = testing::make_seeded(kSeed, [] { return std::make_shared<WithCopy>(); });
    fully_shard(*sharded, Mesh::shard(world));
    fsdp::load(*sharded, in(folder));
    expect_same_values(*sharded, *whole);
  });
}

TEST(Archive, MayBeCompressed) {
  Files files;
  const ArchiveModel whole = make_model(archive_case("nested"), kOtherSeed);
  torch::save(whole.module, in(files.whole));
  {
    caffe2::serialize::PyTorchStreamReader reader(in(files.whole));
    caffe2::serialize::PyTorchStreamWriter writer(in(files.sharded));
    for (const std::string& name : reader.getAllRecords()) {
      const auto [data, size] = reader.getRecord(name);
      writer.writeRecord(name, data.get(), size, /*compress=*/true);
    }
    writer.writeEndOfFile();
  }
  EXPECT_LT(read_text(in(files.sharded)).size(), read_text(in(files.whole)).size());
  expect_readable(in(files.sharded), *whole.module);
}

// ---- modules that read and write by themselves

// Its file has another name for the weight, and a number beside it.
struct Counting : torch::nn::Module {
  Counting() { weight = register_parameter("weight", torch::randn({64, 40})); }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("matrix", weight);
    archive.write("steps", torch::full({2000}, steps, torch::kLong), /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    archive.read("matrix", weight);
    torch::Tensor stored;
    archive.read("steps", stored, /*is_buffer=*/true);
    steps = stored[1999].item<int64_t>();
  }
  torch::Tensor weight;
  int64_t steps = 0;
};

TEST(Archive, UsesTheModulesOwnSaveAndLoad) {
  Files files;
  const auto whole = std::make_shared<Counting>();
  whole->steps = 7;
  torch::save(whole, in(files.whole));
  run_ranks(2, [&](const World& world) {
    const auto sharded = testing::make_seeded(kSeed, [] { return std::make_shared<Counting>(); });
    fully_shard(*sharded, Mesh::shard(world));
    fsdp::load(*sharded, in(files.whole));
    EXPECT_EQ(sharded->steps, 7);
    expect_same_values(*sharded, *whole);
    fsdp::save(*sharded, in(files.sharded));
    if (world.rank == 0) expect_same_archive(in(files.sharded), in(files.whole));
  });
}

// ---- TorchScript

torch::jit::Module make_script(uint64_t seed) {
  torch::jit::Module layer("layer");
  layer.register_parameter(
      "weight", (torch::randn({kArchiveFeatures, kArchiveFeatures}, testing::generator(seed))).requires_grad_(), false);
  layer.register_buffer("mean", torch::randn({kArchiveFeatures}, testing::generator(seed + 1)));
  layer.define("def forward(self, x):\n  return torch.tanh(torch.linear(x - self.mean, self.weight))\n");
  torch::jit::Module root("root");
  root.register_parameter("scale", torch::randn({7}, testing::generator(seed + 2)).requires_grad_(), false);
  root.register_module("layer", layer);
  root.register_attribute("times", c10::IntType::get(), 2);
  root.define(R"(
def forward(self, x):
  for i in range(self.times):
    x = self.layer.forward(x) + torch.ones([36]) * 0.5
  return x.sum(1, keepdim=True) * self.scale
)");
  std::stringstream file;
  root.save(file);
  return torch::jit::load(file);
}

torch::jit::Module make_sharded_script(uint64_t seed, const World& world, Strategy strategy) {
  torch::jit::Module module = make_script(seed);
  ShardOptions options;
  options.strategy = strategy;
  torch::jit::Module layer = module.attr("layer").toModule();
  fully_shard(layer, Mesh::shard(world), options);
  fully_shard(module, Mesh::shard(world), options);
  return module;
}

TEST(Archive, OfTorchScriptIsThatOfTheUnshardedModule) {
  Files files;
  const torch::Tensor rows = rows_of(0);
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptimGradsParams}) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(name(strategy), ", ", ranks, " ranks, rank ", world.rank));
        torch::jit::Module sharded = make_sharded_script(kSeed, world, strategy);
        torch::jit::Module whole = make_script(kSeed);
        for (int i = 0; i < 3; ++i) {  // the executor has graphs of its own by now
          EXPECT_TRUE(torch::allclose(sharded.forward({rows}).toTensor(), whole.forward({rows}).toTensor()));
        }
        fsdp::save(sharded, in(files.sharded));
        if (world.rank == 0) {
          whole.save(in(files.whole));
          expect_same_archive(in(files.sharded), in(files.whole));
        }
        barrier(world, "compared");
        torch::jit::Module other = make_sharded_script(kOtherSeed, world, strategy);
        fsdp::load(other, in(files.sharded));
        EXPECT_TRUE(torch::allclose(other.forward({rows}).toTensor(), whole.forward({rows}).toTensor()));
        EXPECT_TRUE(torch::allclose(torch::jit::load(in(files.sharded)).forward({rows}).toTensor(),
                                    whole.forward({rows}).toTensor()));
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::archive_test
