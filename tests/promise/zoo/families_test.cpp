// Models of every family, each with every strategy on 1 to 4 ranks: two microbatches a step, two steps, a checkpoint
// that a new model and optimizer read, two more steps, against an unsharded twin. Dtype and optimizer go round, so that
// each pair of them comes up for each family; with FSDP_TEST_FAMILIES=all every pair comes up everywhere.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fsdp/fsdp.h"
#include "tests/checkpoint/training_run.h"
#include "tests/io/temporary_folder.h"
#include "tests/promise/models/block_model.h"
#include "tests/promise/zoo/families.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::families_test {
namespace {

using testing::AnyOptimizer;
using testing::Family;
using testing::kFlatStrategies;
using testing::OptimizerKind;
using testing::run_ranks;
using testing::ZooModel;
using testing::ZooRoot;

constexpr int64_t kRows = 12;  // of all ranks together, in a microbatch
constexpr int kMicrobatches = 2;
constexpr uint64_t kSeed = 3301;
constexpr uint64_t kOtherSeed = 3302;
constexpr torch::Dtype kDtypes[] = {torch::kFloat, torch::kDouble, torch::kBFloat16};
constexpr OptimizerKind kOptimizers[] = {OptimizerKind::kAdamW, OptimizerKind::kSGD, OptimizerKind::kTorchAdam};

struct Setup {
  const Family* family;
  int ranks;
  Strategy strategy;
  torch::Dtype dtype;  // in which the model computes; bf16 with fp32 main weights
  OptimizerKind optimizer;

  bool is_mixed() const { return dtype == torch::kBFloat16; }
  torch::Dtype main_dtype() const { return is_mixed() ? torch::kFloat : dtype; }
  // bf16: a weight that rounds to the other neighbour changes the next gradients by a part in 256.
  double tolerance() const { return is_mixed() ? 1e-3 : dtype == torch::kDouble ? 1e-11 : 2e-5; }
  std::string text() const {
    return c10::str(family->name, ", ", name(strategy), ", ", dtype, ", ", testing::name(optimizer), ", ", ranks,
                    " ranks");
  }
};

torch::Tensor rows_of(const Setup& setup, int step, int turn, int microbatch) {
  const auto seed = static_cast<uint64_t>(100 * step + 10 * turn + microbatch);
  return torch::randn({kRows, setup.family->features}, testing::generator(seed)).to(setup.dtype);
}

torch::nn::Module& module_of(const ZooRoot& root) { return *std::get<std::shared_ptr<torch::nn::Module>>(root.module); }

ZooModel make_model(const Setup& setup, uint64_t seed, torch::Dtype dtype) {
  ZooModel model = testing::make_seeded(seed, setup.family->make);
  for (const ZooRoot& root : model.roots) module_of(root).to(dtype);
  return model;
}

// ---- unsharded: whole batches, or in bf16 the ranks' shares one by one, on weights rounded before each step

class Twin {
 public:
  explicit Twin(const Setup& setup)
      : setup_(setup),
        main_(make_model(setup, kSeed, setup.main_dtype())),
        computing_(setup.is_mixed() ? make_model(setup, kSeed, setup.dtype) : main_) {
    for (const ZooRoot& root : main_.roots) {
      optimizers_.push_back(make_optimizer(module_of(root).parameters()));
    }
  }

  double turn(int step, int turn) {
    copy_weights();
    double total = 0;
    const int shares = setup_.is_mixed() ? setup_.ranks : 1;
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      for (int rank = 0; rank < shares; ++rank) {
        World place;
        place.rank = rank;
        place.size = shares;
        const auto loss =
            computing_.loss(testing::share_of(place, rows_of(setup_, step, turn, microbatch)), turn) / kMicrobatches;
        loss.backward();
        total += loss.item<double>() / shares;
        if (setup_.is_mixed()) take_gradients();
      }
    }
    optimizers_[static_cast<size_t>(turn)]->step();
    for (const auto& optimizer : optimizers_) optimizer->zero_grad();
    return total;
  }

  const ZooModel& main() const { return main_; }

 private:
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<torch::Tensor>& weights) const {
    return testing::make_torch_optimizer(setup_.optimizer, weights);
  }

  void for_pairs(const std::function<void(torch::Tensor& main, torch::Tensor& computing)>& body) {
    if (!setup_.is_mixed()) return;
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < main_.roots.size(); ++i) {
      auto main = module_of(main_.roots[i]).parameters(), computing = module_of(computing_.roots[i]).parameters();
      for (size_t j = 0; j < main.size(); ++j) body(main[j], computing[j]);
    }
  }

  void copy_weights() {
    for_pairs([](torch::Tensor& main, torch::Tensor& computing) { computing.copy_(main); });
  }

  void take_gradients() {
    for_pairs([&](torch::Tensor& main, torch::Tensor& computing) {
      if (!computing.grad().defined()) return;
      const torch::Tensor part = computing.grad().to(torch::kFloat) / setup_.ranks;
      main.mutable_grad() = main.grad().defined() ? main.grad() + part : part;
      computing.mutable_grad().reset();
    });
  }

  Setup setup_;
  ZooModel main_;
  ZooModel computing_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

// ---- sharded

class Sharded {
 public:
  Sharded(const World& world, const Setup& setup, uint64_t seed)
      : world_(world), setup_(setup), model_(make_model(setup, seed, setup.main_dtype())) {
    ShardOptions options;
    options.strategy = setup.strategy;
    if (setup.is_mixed()) {
      options.precision = Precision::bf16();
      options.precision.buffers = setup.dtype;
    }
    const Mesh mesh = Mesh::shard(world);
    for (ZooRoot& root : model_.roots) {
      for (auto& unit : root.units) fully_shard(*std::get<std::shared_ptr<torch::nn::Module>>(unit), mesh, options);
      roots_.push_back(fully_shard(module_of(root), mesh, options));
      optimizers_.push_back(std::make_unique<AnyOptimizer>(setup.optimizer, parameters(module_of(root))));
    }
  }

  double turn(int step, int turn) {
    double total = 0;
    for (int i = 0; i < kMicrobatches; ++i) {
      const Microbatch scope(roots_[static_cast<size_t>(turn)], /*is_last=*/i == kMicrobatches - 1);
      const auto loss = model_.loss(testing::share_of(world_, rows_of(setup_, step, turn, i)), turn) / kMicrobatches;
      loss.backward();
      total += loss.item<double>();
    }
    optimizers_[static_cast<size_t>(turn)]->step();
    for (const ZooRoot& root : model_.roots) zero_grad(module_of(root));
    return sum_over_ranks(world_, torch::tensor(total, torch::kDouble)).item<double>() / world_.size;
  }

  int turns() const { return static_cast<int>(roots_.size()); }

  void save(const std::filesystem::path& folder) {
    for (size_t i = 0; i < roots_.size(); ++i) checkpoint::save(folder / std::to_string(i) / "step-2", state(i));
  }
  void load(const std::filesystem::path& folder) {
    for (size_t i = 0; i < roots_.size(); ++i) checkpoint::load(folder / std::to_string(i) / "step-2", state(i));
  }

  void expect_weights(const Twin& twin) const {
    for (size_t i = 0; i < roots_.size(); ++i) {
      const auto wanted = module_of(twin.main().roots[i]).named_parameters();
      for (const auto& [name, leaf] : named_parameters(module_of(model_.roots[i]))) {
        const LocalRange range = local_range(leaf);
        if (range.begin == range.end) continue;
        const torch::Tensor& whole = *wanted.find(name);
        const double bound = setup_.tolerance() * (1 + whole.detach().abs().max().item<double>());
        const torch::Tensor mine = whole.detach().flatten().slice(0, range.begin, range.end);
        EXPECT_LE((leaf.detach() - mine).abs().max().item<double>(), bound) << name << " of root " << i;
      }
    }
  }

 private:
  checkpoint::State state(size_t root) {
    return {.model = module_of(model_.roots[root]), .optimizer = optimizers_[root]->ref()};
  }

  World world_;
  Setup setup_;
  ZooModel model_;
  std::vector<Unit> roots_;
  std::vector<std::unique_ptr<AnyOptimizer>> optimizers_;
};

void train_both(Sharded& sharded, Twin& twin, const Setup& setup, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (int turn = 0; turn < sharded.turns(); ++turn) {
      const double wanted = twin.turn(step, turn);
      const double loss_bound = (setup.is_mixed() ? 0.02 : setup.tolerance()) * (1 + std::abs(wanted));
      EXPECT_NEAR(sharded.turn(step, turn), wanted, loss_bound) << "step " << step << ", turn " << turn;
      sharded.expect_weights(twin);
    }
  }
}

void expect_parity(const Setup& setup) {
  SCOPED_TRACE(setup.text());
  const io::TemporaryFolder folder;
  run_ranks(setup.ranks, [&](const World& world) {
    SCOPED_TRACE(c10::str(setup.text(), ", rank ", world.rank));
    Twin twin(setup);
    {
      Sharded sharded(world, setup, kSeed);
      train_both(sharded, twin, setup, 0, 2);
      sharded.save(folder.path());
    }
    Sharded resumed(world, setup, kOtherSeed);
    resumed.load(folder.path());
    train_both(resumed, twin, setup, 2, 4);
  });
}

class Families : public ::testing::TestWithParam<int> {};

TEST_P(Families, TrainLikeTheUnshardedModel) {
  const Family& family = testing::families().at(static_cast<size_t>(GetParam()));
  const char* every = std::getenv("FSDP_TEST_FAMILIES");
  const int pairs = every != nullptr && std::string(every) == "all" ? 9 : 1;
  int turn = GetParam();
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Strategy strategy : kFlatStrategies) {
      for (int pair = 0; pair < pairs; ++pair, ++turn) {
        expect_parity({&family, ranks, strategy, kDtypes[turn % 3], kOptimizers[turn / 3 % 3]});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Families, ::testing::Range(0, 7),
                         [](const auto& info) { return testing::families().at(static_cast<size_t>(info.param)).name; });

}  // namespace
}  // namespace fsdp::families_test
