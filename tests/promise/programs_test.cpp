// Programs made by chance on models made by chance, in fp64: what they do to a sharded model they do to its unsharded
// twin, which sees the rows of all ranks at once. To repeat a failure: FSDP_TEST_SEED=<seed of the message>; for more
// of them: FSDP_TEST_PROGRAMS=<number>, and others FSDP_TEST_FIRST_PROGRAM=<seed>.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <sstream>

#include "fsdp/fsdp.h"
#include "tests/promise/zoo/random_tree.h"
#include "tests/support/ranks.h"

namespace fsdp::programs_test {
namespace {

using testing::run_ranks;
using testing::TreeImpl;
using testing::TreePlan;

constexpr int64_t kRows = 12;  // of all ranks together; worlds of 1 to 4 divide it
constexpr double kTolerance = 1e-9;

struct Model : torch::nn::Module {
  explicit Model(const TreePlan& plan) {
    tree = register_module("tree", std::make_shared<TreeImpl>(plan));
    gain = register_parameter("gain", torch::tensor(1.1F));
  }
  torch::Tensor forward(const torch::Tensor& x) { return tree->forward(x) * gain; }
  std::shared_ptr<TreeImpl> tree;
  torch::Tensor gain;
};

enum class Action {
  kBackward,
  kTwoForwards,
  kBackwardTwice,
  kInputGradient,
  kForwardWithoutBackward,
  kEvaluate,
  kInference,
  kFailInForward,
  kPenaltyOnModule,
  kPenaltyOnLeaves,
  kNoSync,
  kClip,
  kStep,
  kZeroGradOfModule,
  kZeroGradOfOptimizer,
  kAverage,
  kSave,
  kPointer,
  kRemember,
  kGoBack,
  kUnshardAhead,
  kCount
};

struct Instruction {
  Action action;
  uint64_t seed;  // of its rows and choices
};

struct Program {
  unsigned seed = 0;
  TreePlan tree;
  ShardOptions options;
  std::vector<Instruction> instructions;
  std::string text() const {
    std::string actions;
    for (const Instruction& each : instructions) actions += c10::str(" ", static_cast<int>(each.action));
    return c10::str("seed ", seed, ": ", name(options.strategy), ", ", schedule::describe(options.schedule),
                    ", actions", actions);
  }
};

Program random_program(unsigned seed) {
  std::mt19937 random(seed);
  Program program;
  program.seed = seed;
  program.tree = testing::random_tree(random);
  program.options.strategy = static_cast<Strategy>(random() % 4);
  switch (random() % 3) {
    case 0:
      program.options.schedule = schedule::Schedule::static_order(static_cast<int>(random() % 3));
      break;
    case 1:
      program.options.schedule = schedule::Schedule::delayed_release(1 + static_cast<int>(random() % 2));
      break;
    default:
      program.options.schedule = schedule::Schedule::on_demand();
  }
  const auto length = 6 + random() % 14;
  for (unsigned i = 0; i < length; ++i) {
    // Every other one trains, so that the others have something to find.
    const Action training[] = {Action::kBackward, Action::kStep, Action::kZeroGradOfModule, Action::kBackward};
    const auto action =
        random() % 2 == 0 ? training[random() % 4] : static_cast<Action>(random() % static_cast<int>(Action::kCount));
    program.instructions.push_back({action, random()});
  }
  program.instructions.push_back({Action::kBackward, random()});
  return program;
}

// One who runs a program: a rank with its part of a sharded model, or the twin with all of it.
struct Player {
  std::shared_ptr<Model> model;
  int64_t width;
  std::vector<torch::Tensor> leaves;  // what the optimizer has
  std::function<torch::Tensor(const torch::Tensor&)> share;
  std::unique_ptr<torch::optim::SGD> optimizer = {};
  std::vector<torch::Tensor> shadow = {};

  torch::Tensor rows(uint64_t seed) const {
    return share(torch::randn({kRows, width}, testing::generator(seed), torch::kDouble));
  }
  torch::Tensor loss(uint64_t seed) { return model->forward(rows(seed)).square().mean(); }
};

torch::Tensor penalty(const std::vector<torch::Tensor>& weights) {
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  for (const torch::Tensor& weight : weights) {
    if (weight.requires_grad()) sum = sum + 0.01 * weight.square().sum();
  }
  return sum;
}

// What both do alike.
void run_common(Player& player, const Instruction& instruction) {
  const uint64_t seed = instruction.seed;
  switch (instruction.action) {
    case Action::kBackward:
    case Action::kNoSync:
      player.loss(seed).backward();
      break;
    case Action::kTwoForwards:
      (player.loss(seed) + 0.5 * player.loss(seed + 1)).backward();
      break;
    case Action::kBackwardTwice: {
      const torch::Tensor loss = player.loss(seed);
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      break;
    }
    case Action::kInputGradient: {
      const torch::Tensor rows = player.rows(seed).requires_grad_();
      torch::autograd::grad({player.model->forward(rows).sum()}, {rows});
      break;
    }
    case Action::kForwardWithoutBackward:
      player.loss(seed);
      break;
    case Action::kFailInForward:
      EXPECT_THROW(player.model->forward(torch::ones({2, player.width + 1}, torch::kDouble)).sum().item<double>(),
                   c10::Error);
      break;
    case Action::kPenaltyOnModule:
      (player.loss(seed) + penalty(player.model->parameters())).backward();
      break;
    case Action::kPenaltyOnLeaves:
      (player.loss(seed) + penalty(player.leaves)).backward();
      break;
    case Action::kStep:
      player.optimizer->step();
      break;
    case Action::kZeroGradOfModule:
      player.model->zero_grad(seed % 2 == 0);
      break;
    case Action::kZeroGradOfOptimizer:
      player.optimizer->zero_grad(seed % 2 == 0);
      break;
    case Action::kAverage: {
      const torch::NoGradGuard no_grad;
      const auto weights = player.model->parameters();
      if (player.shadow.empty()) {
        for (const torch::Tensor& weight : weights) player.shadow.push_back(torch::zeros_like(weight));
      }
      for (size_t i = 0; i < weights.size(); ++i) player.shadow[i].mul_(0.9).add_(weights[i], 0.1);
      break;
    }
    default:
      break;
  }
}

// The rank's side of what is written otherwise for a sharded model, and looks at the twin.
class Match {
 public:
  Match(const World& world, const Program& program, Player& rank, Player& twin, Unit root)
      : world_(world), program_(program), rank_(rank), twin_(twin), root_(std::move(root)) {
    remembered_ = full_state_dict(*rank_.model);
  }

  void run(const Instruction& instruction) {
    if (instruction.action == Action::kNoSync) {
      const NoSync scope(root_);
      run_common(rank_, instruction);
    } else {
      run_common(rank_, instruction);
    }
    run_common(twin_, instruction);
    switch (instruction.action) {
      case Action::kEvaluate:
      case Action::kInference:
        return compare_outputs(instruction);
      case Action::kClip:
        return clip(instruction.seed);
      case Action::kSave:
        return save();
      case Action::kPointer:
        return look();
      case Action::kRemember:
        remembered_ = full_state_dict(*rank_.model);
        return;
      case Action::kGoBack:
        return go_back();
      case Action::kUnshardAhead:
        root_.unshard_async();
        return;
      default:
        return;
    }
  }

  // A backward that was not synchronised shows its gradients only after the next one.
  void compare_gradients() {
    const StateDict gradients = full_gradients(*rank_.model);
    for (const auto& item : twin_.model->named_parameters()) {
      const auto found = gradients.tensors.find(item.key());
      const torch::Tensor want = item.value().grad();
      if (found == gradients.tensors.end()) {
        EXPECT_TRUE(!want.defined()) << item.key() << " has no gradient";
      } else {
        expect_close(found->second, want.defined() ? want : torch::zeros_like(item.value()), item.key() + ".grad");
      }
    }
  }

  // Some programs take steps that are too long, and then there is nothing to compare; every rank sees the same twin.
  bool has_diverged() const {
    for (const torch::Tensor& weight : twin_.model->parameters()) {
      const bool is_finite = weight.isfinite().all().item<bool>();
      if (!is_finite || (weight.grad().defined() && !weight.grad().isfinite().all().item<bool>())) return true;
    }
    return false;
  }

  void compare_weights() {
    const StateDict weights = full_state_dict(*rank_.model);
    for (const auto& item : twin_.model->named_parameters()) {
      expect_close(weights.tensors.at(item.key()), item.value().detach(), item.key());
    }
    for (size_t i = 0; i < rank_.shadow.size(); ++i) expect_close(rank_.shadow[i], twin_.shadow[i], "average");
  }

 private:
  static void expect_close(const torch::Tensor& got, const torch::Tensor& want, const std::string& what) {
    if (!want.isfinite().all().item<bool>()) {
      EXPECT_FALSE(got.isfinite().all().item<bool>()) << what;
      return;
    }
    EXPECT_TRUE(torch::allclose(got, want, kTolerance, kTolerance))
        << what << " differs by " << (got - want).abs().max().item<double>();
  }

  void compare_outputs(const Instruction& instruction) {
    const torch::NoGradGuard no_grad;
    torch::Tensor got;
    if (instruction.action == Action::kInference) {
      const c10::InferenceMode inference;
      got = rank_.model->forward(rank_.rows(instruction.seed));
      expect_close(got, twin_.model->forward(rank_.rows(instruction.seed)), "output");
    } else {
      got = rank_.model->forward(rank_.rows(instruction.seed));
      expect_close(got, twin_.model->forward(rank_.rows(instruction.seed)), "output");
    }
  }

  void clip(uint64_t seed) {
    constexpr double kNorms[] = {1, 2, 3, std::numeric_limits<double>::infinity()};
    const double p = kNorms[seed % 4];
    const double got = clip_grad_norm_(*rank_.model, 0.3, p).item<double>();
    const double want = torch::nn::utils::clip_grad_norm_(twin_.model->parameters(), 0.3, p);
    if (!std::isfinite(want)) {
      EXPECT_FALSE(std::isfinite(got)) << "norm";
      return;
    }
    EXPECT_NEAR(got, want, kTolerance * (1 + want));
  }

  void save() {
    std::stringstream file;
    try {
      torch::save(rank_.model, file);
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("fsdp::save(module, file)"));
      return;
    }
    const auto read = std::make_shared<Model>(program_.tree);
    read->to(torch::kDouble);
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    read->load(archive);
    const auto want = twin_.model->parameters();
    for (size_t i = 0; i < want.size(); ++i) expect_close(read->parameters()[i], want[i], "saved");
  }

  void look() {
    double value = 0;
    try {
      value = *rank_.model->gain.const_data_ptr<double>();
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("fsdp::touch({weight})"));
      return;
    }
    const double want = twin_.model->gain.item<double>();
    EXPECT_NEAR(value, want, kTolerance * (1 + std::abs(want)));
  }

  void go_back() {
    load_full_state_dict(*rank_.model, remembered_);
    const torch::NoGradGuard no_grad;
    for (auto& item : twin_.model->named_parameters()) item.value().copy_(remembered_.tensors.at(item.key()));
  }

  const World& world_;
  const Program& program_;
  Player& rank_;
  Player& twin_;
  Unit root_;
  StateDict remembered_;
};

std::shared_ptr<Model> make_model(const Program& program) {
  const auto model = testing::make_seeded(program.seed, [&] { return std::make_shared<Model>(program.tree); });
  model->to(torch::kDouble);
  return model;
}

void give_optimizer(Player& player) {
  std::vector<torch::Tensor> trainable;
  for (const torch::Tensor& leaf : player.leaves) {
    if (leaf.requires_grad()) trainable.push_back(leaf);
  }
  player.optimizer = std::make_unique<torch::optim::SGD>(trainable, torch::optim::SGDOptions(0.02).momentum(0.5));
}

void play(const World& world, const Program& program) {
  const Mesh mesh = Mesh::shard(world);
  Player rank{make_model(program), program.tree.width, {}, [&](const torch::Tensor& rows) {
                const int64_t count = kRows / world.size;
                return rows.narrow(0, world.rank * count, count);
              }};
  testing::shard_units(*rank.model->tree, program.tree, mesh, program.options);
  const Unit root = fully_shard(*rank.model, mesh, program.options);
  rank.leaves = parameters(*rank.model);
  Player twin{make_model(program), program.tree.width, {}, [](const torch::Tensor& rows) { return rows; }};
  twin.leaves = twin.model->parameters();
  give_optimizer(rank);
  give_optimizer(twin);
  Match match(world, program, rank, twin, root);
  bool waits = false;  // gradients that no_sync keeps
  for (const Instruction& instruction : program.instructions) {
    // Gradients that were not synchronised are in no leaf: they cannot be clipped there, nor stepped with, nor emptied.
    const bool is_of_leaves = instruction.action == Action::kClip || instruction.action == Action::kStep ||
                              instruction.action == Action::kZeroGradOfOptimizer;
    if (waits && is_of_leaves) continue;
    SCOPED_TRACE(static_cast<int>(instruction.action));
    match.run(instruction);
    if (instruction.action == Action::kNoSync) waits = true;
    if (instruction.action == Action::kBackward || instruction.action == Action::kTwoForwards) waits = false;
    if (::testing::Test::HasFailure()) return;
    if (match.has_diverged()) break;
  }
  match.compare_gradients();
  match.compare_weights();
}

unsigned number_from(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? static_cast<unsigned>(std::stoul(text)) : otherwise;
}

TEST(Programs, DoTheSameToAShardedModel) {
  const bool is_chosen = std::getenv("FSDP_TEST_SEED") != nullptr;
  // One seed for everybody: a change is not judged by programs that the last one was spared.
  const unsigned first = number_from("FSDP_TEST_SEED", number_from("FSDP_TEST_FIRST_PROGRAM", 1));
  const unsigned count = is_chosen ? 1 : number_from("FSDP_TEST_PROGRAMS", 40);
  for (unsigned i = 0; i < count; ++i) {
    const Program program = random_program(first + i);
    const int size = 1 + static_cast<int>((first + i) % 4);
    SCOPED_TRACE(c10::str(program.text(), ", world ", size));
    ASSERT_NO_THROW(run_ranks(size, [&](const World& world) {
      SCOPED_TRACE(c10::str(program.text(), ", world ", size));
      play(world, program);
    }));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fsdp::programs_test
