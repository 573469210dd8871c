// What does not fit, or is damaged, is refused on every rank, with everything that is wrong in one message; what does
// not fit has changed nothing: the training that goes on is that of a run which never tried.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fsdp/fsdp.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "tests/checkpoint/caught_error.h"
#include "tests/checkpoint/training_run.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/ranks.h"

namespace fsdp::load_refusal_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::State;
using io::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::caught_from;
using testing::CaughtError;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_seeded;
using ::testing::Not;
using testing::OptimizerKind;
using ::testing::Optional;
using testing::Outcome;
using testing::run_ranks;
using ::testing::SizeIs;
using testing::TrainingPlan;
using testing::TrainingRun;

constexpr uint64_t kSeed = 31;

// ---- of another model

// Parameters of any names and shapes, and a buffer of whole numbers.
using Shapes = std::map<std::string, std::vector<int64_t>>;

struct Bag : torch::nn::Module {
  Bag(const Shapes& shapes, torch::ScalarType count_dtype) {
    for (const auto& [name, shape] : shapes) weights.push_back(register_parameter(name, torch::randn(shape)));
    register_buffer("count", torch::ones({3}, count_dtype));
  }
  torch::Tensor loss() const {
    torch::Tensor sum = torch::zeros({1});
    for (const torch::Tensor& weight : weights) sum = sum + weight.square().sum();
    return sum.sum();
  }
  std::vector<torch::Tensor> weights;
};

using Interlude = std::function<void(const State&)>;

// The weights that a bag has after four steps, with something in the middle.
std::vector<torch::Tensor> train_bag(const World& world, const Shapes& shapes, const Interlude& interlude,
                                     torch::ScalarType count_dtype = torch::kLong) {
  const auto bag = make_seeded(kSeed, [&] { return std::make_shared<Bag>(shapes, count_dtype); });
  fully_shard(*bag, Mesh::shard(world));
  AdamW optimizer(parameters(*bag), {.lr = 0.05});
  for (int step = 0; step < 4; ++step) {
    if (step == 2) interlude(State{.model = *bag, .optimizer = optimizer});
    bag->loss().backward();
    optimizer.step();
    zero_grad(*bag);
  }
  std::vector<torch::Tensor> weights;
  for (const torch::Tensor& leaf : parameters(*bag)) weights.push_back(leaf.detach().clone());
  return weights;
}

void save_bag(const fs::path& folder, const Shapes& shapes) {
  run_ranks(2, [&](const World& world) {
    train_bag(world, shapes, [&](const State& state) { checkpoint::save(folder, state); });
  });
}

// What a bag of these shapes says to that checkpoint, on each of two ranks; it then goes on as if nothing had been.
std::vector<CaughtError> refusals(const fs::path& folder, const Shapes& shapes,
                                  const std::function<State(const State&)>& part_of,
                                  torch::ScalarType count_dtype = torch::kLong) {
  std::vector<CaughtError> caught(2);
  run_ranks(2, [&](const World& world) {
    const auto tried = train_bag(
        world, shapes,
        [&](const State& state) {
          caught[static_cast<size_t>(world.rank)] = caught_from([&] { checkpoint::load(folder, part_of(state)); });
        },
        count_dtype);
    expect_same_bits(tried, train_bag(
                                world, shapes, [](const State&) {}, count_dtype));
  });
  return caught;
}

State all_of(const State& state) { return state; }
State model_of(const State& state) { return {.model = state.model}; }

TEST(CheckpointRefusal, TellsAllDifferencesOfAModelAtOnce) {
  const TemporaryFolder folder;
  save_bag(folder / "step-1", {{"same", {4, 5}}, {"wider", {3, 8}}, {"gone", {7}}, {"lost", {2, 2}}});
  const Shapes shapes = {{"same", {4, 5}}, {"wider", {3, 9}}, {"fresh", {6}}, {"other", {5}}};
  for (const CaughtError& caught : refusals(folder / "step-1", shapes, model_of)) {
    EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("step-1"), HasSubstr("model/wider"), HasSubstr("[3, 8]"),
                                   HasSubstr("[3, 9]"), HasSubstr("model/fresh"), HasSubstr("model/other")));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("model/gone"), HasSubstr("model/lost")));
    EXPECT_THAT(caught.text, AllOf(Not(HasSubstr("model/same")), Not(HasSubstr("\n"))));
  }
}

TEST(CheckpointRefusal, TellsHowManyThereAre) {
  const TemporaryFolder folder;
  Shapes shapes = {{"same", {4, 5}}};
  save_bag(folder / "step-1", shapes);
  for (int i = 0; i < 40; ++i) shapes["fresh" + std::to_string(i)] = {3};
  for (const CaughtError& caught : refusals(folder / "step-1", shapes, model_of)) {
    EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("40"), HasSubstr("model/fresh0")));
    EXPECT_LT(caught.text.size(), 2000U);
  }
}

TEST(CheckpointRefusal, OfTheOptimizersTensorsToo) {
  const TemporaryFolder folder;
  save_bag(folder / "step-1", {{"same", {4, 5}}, {"wider", {3, 8}}});
  for (const CaughtError& caught : refusals(folder / "step-1", {{"same", {4, 5}}, {"wider", {8, 3}}}, all_of)) {
    EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("model/wider"), HasSubstr("optimizer/exp_avg/wider"),
                                   HasSubstr("optimizer/exp_avg_sq/wider")));
  }
}

TEST(CheckpointRefusal, OfWholeNumbersForRealOnes) {
  const TemporaryFolder folder;
  const Shapes shapes = {{"same", {4, 5}}};
  save_bag(folder / "step-1", shapes);
  for (const CaughtError& caught : refusals(folder / "step-1", shapes, all_of, torch::kFloat)) {
    EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("model/count"), HasSubstr("I64")));
  }
}

// ---- of another optimizer

// Steps of one rank, with something before step 3.
Outcome train(const World& world, const TrainingPlan& plan, const std::function<void(TrainingRun&)>& interlude) {
  TrainingRun run(world, plan, kSeed);
  Outcome outcome;
  for (int step = 0; step < 5; ++step) {
    if (step == 3) interlude(run);
    outcome.losses.push_back(run.step(step));
  }
  outcome.tensors = run.tensors();
  return outcome;
}

TEST(CheckpointRefusal, OfAnotherOptimizer) {
  using enum OptimizerKind;
  const std::pair<OptimizerKind, OptimizerKind> pairs[] = {
      {kAdamW, kSGD},          {kSGD, kAdamW},        {kTorchSGD, kTorchRMSprop}, {kTorchRMSprop, kTorchSGD},
      {kTorchAdagrad, kAdamW}, {kAdamW, kTorchSGD},   {kTorchSGD, kTorchAdagrad}, {kTorchAdam, kTorchAmsgrad},
      {kSGD, kTorchAdagrad},   {kTorchAdagrad, kSGD}, {kTorchRMSprop, kTorchAdam}};
  for (const auto& [saved, loading] : pairs) {
    SCOPED_TRACE(testing::name(saved) + " into " + testing::name(loading));
    const TemporaryFolder folder;
    const TrainingPlan writer{Strategy::kOptimGradsParams, 1, 2, false, saved};
    const TrainingPlan reader{Strategy::kOptimGradsParams, 1, 2, false, loading};
    run_ranks(2, [&](const World& world) {
      train(world, writer, [&](TrainingRun& run) { checkpoint::save(folder / "step-3", run.state()); });
      CaughtError caught;
      const Outcome tried = train(world, reader, [&](TrainingRun& run) {
        caught = caught_from([&] { checkpoint::load(folder / "step-3", run.state()); });
      });
      EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
      EXPECT_THAT(caught.text, AnyOf(HasSubstr("exp_avg"), HasSubstr("momentum_buffer"), HasSubstr("square_avg"),
                                     HasSubstr("grad_avg"), HasSubstr("sum")));
      expect_same_bits(tried, train(world, reader, [](TrainingRun&) {}));
    });
  }
}

TEST(CheckpointRefusal, OfAnotherNumberOfGroups) {
  const TemporaryFolder folder;
  const Shapes shapes = {{"a", {4, 5}}, {"b", {6}}};
  save_bag(folder / "step-1", shapes);
  run_ranks(2, [&](const World& world) {
    const auto bag = make_seeded(kSeed + 1, [&] { return std::make_shared<Bag>(shapes, torch::kLong); });
    fully_shard(*bag, Mesh::shard(world));
    const auto leaves = parameters(*bag);
    AdamW optimizer(std::vector<AdamWGroup>{{{leaves[0]}, {.lr = 0.1}}, {{leaves[1]}, {.lr = 0.2}}});
    const auto before = std::vector<torch::Tensor>{leaves[0].detach().clone(), leaves[1].detach().clone()};
    const CaughtError caught =
        caught_from([&] { checkpoint::load(folder / "step-1", {.model = *bag, .optimizer = optimizer}); });
    EXPECT_THAT(caught.code, AnyOf(Optional(ErrorCode::kCheckpoint), Optional(ErrorCode::kUsage)));
    EXPECT_THAT(caught.text, AllOf(HasSubstr("2"), HasSubstr("1"), HasSubstr("groups")));
    EXPECT_TRUE(torch::equal(leaves[0].detach(), before[0]));
    EXPECT_TRUE(torch::equal(leaves[1].detach(), before[1]));
    EXPECT_EQ(optimizer.options(0).lr, 0.1);
    EXPECT_EQ(optimizer.options(1).lr, 0.2);
  });
}

// ---- of the call

TEST(CheckpointRefusal, OfAFolderThatIsNotNamedForItsStep) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const World& world) {
    const auto refuse = [&](const State& state) {
      for (const char* name :
           {"final", "step-", "step-x", "step--1", "step-5x", "step-007", "step-99999999999999999999"}) {
        const CaughtError caught = caught_from([&] { checkpoint::save(folder / name, state); });
        EXPECT_THAT(caught.code, Optional(ErrorCode::kUsage)) << name;
        EXPECT_THAT(caught.text, AllOf(HasSubstr(name), HasSubstr("step-"))) << name;
      }
    };
    train_bag(world, {{"a", {4, 5}}}, refuse);
  });
  EXPECT_EQ(folder.num_files(), 0U);
}

TEST(CheckpointRefusal, OfAStateWithoutAModelOrWithANameThatIsTaken) {
  const TemporaryFolder folder;
  EXPECT_THAT(caught_from([&] { checkpoint::save(folder / "step-1", State{}); }).code, Optional(ErrorCode::kUsage));
  run_ranks(1, [&](const World& world) {
    train_bag(world, {{"a", {4, 5}}}, [&](const State& state) {
      testing::Noise noise(1);
      for (const char* name : {"model", "optimizer", "random", "a/b", ""}) {
        State mine = state;
        mine.others = {{name, &noise}};
        EXPECT_THAT(caught_from([&] { checkpoint::save(folder / "step-1", mine); }).code, Optional(ErrorCode::kUsage))
            << name;
      }
    });
  });
  EXPECT_EQ(folder.num_files(), 0U);
}

// ---- of what is damaged

void flip_a_bit(const fs::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const int byte = stream.get();
  ASSERT_GE(byte, 0);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x10));
}

// A bit of the last element of a tensor. Returns the name of the file.
std::string flip_a_bit_of(const fs::path& checkpoint, const std::string& tensor) {
  const io::CheckpointManifest manifest = io::read_manifest(checkpoint);
  const io::CheckpointTensor& stored = *manifest.find(tensor);
  const io::CheckpointPart& part = stored.parts.back();
  const auto bytes = static_cast<uint64_t>(part.end - part.begin) * io::item_size(stored.dtype);
  flip_a_bit(checkpoint / manifest.files[part.file].name, part.offset + bytes - 1);
  return manifest.files[part.file].name;
}

TEST(CheckpointDamage, IsNamedOnEveryRank) {
  const TemporaryFolder folder;
  const Shapes shapes = {{"a", {40, 5}}, {"b", {60}}};
  save_bag(folder / "step-1", shapes);
  const std::string second = io::read_manifest(folder / "step-1").files.at(1).name;
  const auto size_of = [](const fs::path& file) { return fs::file_size(file); };
  const struct {
    std::string what;
    std::function<void(const fs::path& checkpoint)> damage;
    std::vector<std::string> told;
  } cases[] = {
      {"a bit of a weight", [](const fs::path& c) { flip_a_bit_of(c, "model/a"); }, {"safetensors", "chunk 0"}},
      {"a bit of the state", [](const fs::path& c) { flip_a_bit_of(c, "optimizer/exp_avg/b"); }, {"chunk 0"}},
      {"a bit of a header", [&](const fs::path& c) { flip_a_bit(c / second, 20); }, {second, "chunk 0"}},
      {"cut off", [&](const fs::path& c) { fs::resize_file(c / second, size_of(c / second) - 1); }, {second}},
      {"longer", [&](const fs::path& c) { fs::resize_file(c / second, size_of(c / second) + 1); }, {second}},
      {"empty", [&](const fs::path& c) { fs::resize_file(c / second, 0); }, {second}},
      {"gone", [&](const fs::path& c) { fs::remove(c / second); }, {second}},
      {"a bit of the manifest", [](const fs::path& c) { flip_a_bit(c / "manifest.json", 40); }, {"manifest.json"}},
      {"no manifest", [](const fs::path& c) { fs::remove(c / "manifest.json"); }, {"manifest.json"}},
      {"nothing", [](const fs::path& c) { fs::remove_all(c); }, {"manifest.json"}}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    fs::remove_all(folder / "step-2");
    fs::copy(folder / "step-1", folder / "step-2", fs::copy_options::recursive);
    each.damage(folder / "step-2");
    run_ranks(2, [&](const World& world) {
      train_bag(world, shapes, [&](const State& state) {
        const CaughtError caught = caught_from([&] { checkpoint::load(folder / "step-2", state); });
        EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint)) << each.what;
        for (const std::string& text : each.told) EXPECT_THAT(caught.text, HasSubstr(text)) << each.what;
      });
    });
    const CaughtError verified = caught_from([&] { checkpoint::verify(folder / "step-2"); });
    EXPECT_THAT(verified.code, Optional(ErrorCode::kCheckpoint));
    for (const std::string& text : each.told) EXPECT_THAT(verified.text, HasSubstr(text));
  }
}

TEST(CheckpointDamage, IsNamedByItsChunk) {
  constexpr int64_t kNumel = int64_t{5} << 20;  // 20 MiB
  const TemporaryFolder folder;
  run_ranks(1, [&](const World& world) {
    const auto bag = std::make_shared<Bag>(Shapes{{"large", {kNumel}}}, torch::kLong);
    fully_shard(*bag, Mesh::shard(world));
    checkpoint::save(folder / "step-1", {.model = *bag});
    EXPECT_GT(checkpoint::verify(folder / "step-1"), kNumel * 4);
    const std::string file = flip_a_bit_of(folder / "step-1", "model/large");
    for (const CaughtError& caught : {caught_from([&] { checkpoint::load(folder / "step-1", {.model = *bag}); }),
                                      caught_from([&] { checkpoint::verify(folder / "step-1"); })}) {
      EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
      EXPECT_THAT(caught.text, AllOf(HasSubstr(file), HasSubstr("chunk 1")));
    }
  });
}

// ---- resume

const TrainingPlan& resumed_plan() {
  static const TrainingPlan plan{Strategy::kOptimGradsParams, 1, 2, false, OptimizerKind::kTorchAdamW};
  return plan;
}

fs::path step_folder(const fs::path& root, int step) { return root / ("step-" + std::to_string(step)); }

// Steps 0 .. 4, each saved. Returns what each rank saw.
std::vector<Outcome> save_every_step(const fs::path& root) {
  std::vector<Outcome> outcomes(2);
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, resumed_plan(), kSeed);
    Outcome& mine = outcomes[static_cast<size_t>(world.rank)];
    for (int step = 0; step < 5; ++step) {
      mine.losses.push_back(run.step(step));
      checkpoint::save(step_folder(root, step + 1), run.state());
    }
    mine.tensors = run.tensors();
  });
  return outcomes;
}

struct PassedOver {
  fs::path folder;
  std::string reason;
};

TEST(CheckpointResume, TakesTheNewestThatIsWhole) {
  const TemporaryFolder root;
  const auto expected = save_every_step(root.path());
  fs::remove(step_folder(root.path(), 5) / "manifest.json");
  // Found when some of the state has been read already.
  const std::string file = flip_a_bit_of(step_folder(root.path(), 4), "optimizer/exp_avg_sq/outlet");
  for (const char* name : {".step-9.tmp-0123456789abcdef", "step-9x", "step-08", "notes"})
    fs::create_directory(root / name);
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, resumed_plan(), kSeed + 1);
    std::vector<PassedOver> passed;
    const auto report =
        checkpoint::resume(root.path(), run.state(), [&](const fs::path& folder, const std::string& reason) {
          passed.push_back({folder, reason});
        });
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->step, 3);
    EXPECT_EQ(report->world_size, 2);
    EXPECT_GT(report->bytes, 0);
    if (world.rank == 0) {
      ASSERT_THAT(passed, SizeIs(2));
      EXPECT_EQ(passed[0].folder, step_folder(root.path(), 5));
      EXPECT_THAT(passed[0].reason, HasSubstr("manifest.json"));
      EXPECT_EQ(passed[1].folder, step_folder(root.path(), 4));
      EXPECT_THAT(passed[1].reason, AllOf(HasSubstr(file), HasSubstr("chunk 0")));
    } else {
      EXPECT_THAT(passed, IsEmpty());
    }
    Outcome mine;
    for (int step = 3; step < 5; ++step) mine.losses.push_back(run.step(step));
    mine.tensors = run.tensors();
    expect_same_bits(mine, expected[static_cast<size_t>(world.rank)], 3);
  });
}

TEST(CheckpointResume, DoesNotStartAnewWhereAllAreDamaged) {
  const TemporaryFolder root;
  save_every_step(root.path());
  for (int step = 1; step <= 5; ++step) fs::remove(step_folder(root.path(), step) / "manifest.json");
  run_ranks(2, [&](const World& world) {
    TrainingRun run(world, resumed_plan(), kSeed);
    int num_passed = 0;
    const CaughtError caught = caught_from([&] {
      checkpoint::resume(root.path(), run.state(), [&](const fs::path&, const std::string&) { ++num_passed; });
    });
    EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
    for (const char* name : {"step-5", "step-3", "step-1"}) EXPECT_THAT(caught.text, HasSubstr(name));
    EXPECT_EQ(num_passed, world.rank == 0 ? 5 : 0);
  });
}

TEST(CheckpointResume, FindsNothingWhereThereIsNothing) {
  const TemporaryFolder root;
  fs::create_directory(root / ".step-3.tmp-1");
  run_ranks(2, [&](const World& world) {
    train_bag(world, {{"a", {4, 5}}}, [&](const State& state) {
      EXPECT_FALSE(checkpoint::resume(root.path(), state).has_value());
      EXPECT_FALSE(checkpoint::resume(root / "not there", state).has_value());
    });
  });
}

TEST(CheckpointResume, DoesNotPassOverOneOfAnotherModel) {
  const TemporaryFolder root;
  save_bag(root / "step-1", {{"a", {4, 5}}});
  save_bag(root / "step-2", {{"b", {4, 5}}});
  run_ranks(2, [&](const World& world) {
    train_bag(world, {{"a", {4, 5}}}, [&](const State& state) {
      int num_passed = 0;
      const CaughtError caught = caught_from(
          [&] { checkpoint::resume(root.path(), state, [&](const fs::path&, const std::string&) { ++num_passed; }); });
      EXPECT_THAT(caught.code, Optional(ErrorCode::kCheckpoint));
      EXPECT_THAT(caught.text, AllOf(HasSubstr("step-2"), HasSubstr("model/a"), HasSubstr("model/b")));
      EXPECT_EQ(num_passed, 0);
    });
  });
}

}  // namespace
}  // namespace fsdp::load_refusal_test
