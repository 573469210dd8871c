// A model whose stages are on several ranks trains as the whole one on one rank.
#include "fsdp/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <tuple>

#include "fsdp/fsdp.h"
#include "tests/support/close.h"
#include "tests/support/ranks.h"

namespace fsdp::pipeline_test {
namespace {

using pipeline::Order;
using pipeline::Pipeline;
using pipeline::Stage;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace fsdp::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kRows = 4, kWidth = 12, kBlocks = 2;

// Writes into what it is given, as programs do.
struct Block : torch::nn::Module {
  Block() {
    up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
    down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  torch::Tensor forward(torch::Tensor x) { return x.add_(down(torch::gelu(up(norm(x.clone()))))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

// A stage.
struct Part : torch::nn::Module {
  Part() {
    scale = register_parameter("scale", torch::rand({kWidth}) + 0.5);
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<Block>());
  }
  torch::Tensor forward(const torch::Tensor& given) {
    torch::Tensor x = given * scale;
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return x;
  }
  torch::Tensor scale;
  torch::nn::ModuleList blocks{nullptr};
};

struct Whole : torch::nn::Module {
  explicit Whole(int stages) {
    parts = register_module("parts", torch::nn::ModuleList());
    for (int i = 0; i < stages; ++i) parts->push_back(std::make_shared<Part>());
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& part : *parts) x = part->as<Part>()->forward(x);
    return x;
  }
  torch::nn::ModuleList parts{nullptr};
};

struct Layout {
  std::vector<MeshAxis> axes;
  Order order = Order::k1F1B;
  int stages_per_rank = 1;
  int microbatches = 4;
  std::optional<Strategy> strategy = std::nullopt;  // none: the stages are not sharded
};

std::string text_of(const Layout& layout) {
  std::string text;
  for (const MeshAxis& axis : layout.axes) text += c10::str(axis.name, "=", axis.size, " ");
  return c10::str(text, "order ", static_cast<int>(layout.order), ", ", layout.stages_per_rank, " stages, ",
                  layout.microbatches, " microbatches, ", layout.strategy ? name(*layout.strategy) : "unsharded");
}

// The whole model and this rank's stages of it, with the same weights.
struct Models {
  Models(const Mesh& mesh, const Layout& layout) {
    const int ranks = mesh.size("pp");
    whole = make_seeded(7, [&] { return std::make_shared<Whole>(ranks * layout.stages_per_rank); });
    whole->to(torch::kDouble);
    for (int own = 0; own < layout.stages_per_rank; ++own) {
      const int stage = own * ranks + mesh.index("pp");
      const auto part = make_seeded(8, [] { return std::make_shared<Part>(); });
      part->to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      const auto weights = whole->parts[static_cast<size_t>(stage)]->named_parameters();
      for (const auto& item : part->named_parameters()) item.value().copy_(weights[item.key()]);
      numbers.push_back(stage);
      parts.push_back(part);
    }
    for (const auto& part : parts) stages.push_back(make_stage(part, mesh, layout));
  }

  static Stage make_stage(const std::shared_ptr<Part>& part, const Mesh& mesh, const Layout& layout) {
    if (!layout.strategy) return pipeline::stage_of(part);
    ShardOptions options;
    options.strategy = *layout.strategy;
    for (const auto& block : *part->blocks) fully_shard(*block, mesh, options);
    const Unit root = fully_shard(*part, mesh, options);
    return pipeline::stage_of(part, root);
  }

  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> leaves;
    for (const Stage& stage : stages) leaves.insert(leaves.end(), stage.leaves.begin(), stage.leaves.end());
    return leaves;
  }

  // Calls compare(part, parameters of the same stage of the whole model).
  template <class Compare>
  void for_parts(const Compare& compare) const {
    for (size_t i = 0; i < parts.size(); ++i) {
      compare(*parts[i], whole->parts[static_cast<size_t>(numbers[i])]->named_parameters());
    }
  }

  std::shared_ptr<Whole> whole;
  std::vector<int> numbers;  // of the stages
  std::vector<std::shared_ptr<Part>> parts;
  std::vector<Stage> stages;
};

torch::Tensor loss_of(const torch::Tensor& y, const torch::Tensor& target) {
  return torch::nn::functional::mse_loss(y, target);
}

struct Batch {
  Batch(int step, int data_ranks, int microbatches) {
    const at::Generator numbers = generator(100 + static_cast<uint64_t>(step));
    const auto draw = [&] {
      return torch::randn({data_ranks, microbatches, kRows, kWidth}, numbers, torch::dtype(torch::kDouble));
    };
    inputs = draw();
    targets = draw();
  }
  torch::Tensor inputs, targets;
};

// What a leaf's ranks have together.
torch::Tensor whole_of(const Mesh& mesh, const at::Tensor& leaf, const at::Tensor& values) {
  const std::vector<int64_t> sizes = logical_sizes(leaf);
  const auto place = place_of(leaf);
  if (!place || place->main_weight == Placement::kReplicate) return values.detach().view(sizes);
  const torch::Tensor whole = torch::zeros({c10::multiply_integers(sizes)}, torch::kDouble);
  const LocalRange range = local_range(leaf);
  whole.narrow(0, range.begin, range.end - range.begin).copy_(values.detach());
  mesh.world().connection->group(mesh.ranks("shard"))->all_reduce_small(whole, {"gather", "test", ""});
  return whole.view(sizes);
}

void expect_equal_steps(const World& world, const Layout& layout) {
  const Mesh mesh = Mesh::parallel(world, layout.axes);
  Models models(mesh, layout);
  const int data_ranks = layout.strategy ? mesh.size("shard") : 1,
            data_rank = layout.strategy ? mesh.index("shard") : 0;
  Pipeline pipeline(mesh, models.stages, layout.order);
  torch::optim::SGD whole_sgd(models.whole->parameters(), 0.1), sgd(models.leaves(), 0.1);
  for (int step = 0; step < 2; ++step) {
    const Batch batch(step, data_ranks, layout.microbatches);
    models.whole->zero_grad();
    torch::Tensor expected = torch::zeros({}, torch::kDouble);
    for (int i = 0; i < data_ranks; ++i) {
      for (int m = 0; m < layout.microbatches; ++m) {
        expected = expected + loss_of(models.whole->forward(batch.inputs[i][m].clone()), batch.targets[i][m]);
      }
    }
    expected = expected / (data_ranks * layout.microbatches);
    expected.backward();

    for (const auto& part : models.parts) zero_grad(*part);
    std::vector<at::Tensor> inputs(static_cast<size_t>(layout.microbatches));
    if (pipeline.has_first_stage()) {
      for (int m = 0; m < layout.microbatches; ++m) inputs[static_cast<size_t>(m)] = batch.inputs[data_rank][m].clone();
    }
    const double loss =
        pipeline.step(inputs, [&](const at::Tensor& y, int m) { return loss_of(y, batch.targets[data_rank][m]); });
    const at::Tensor sum = torch::full({1}, loss, torch::kDouble);
    world.connection->world()->all_reduce_small(sum, {"loss", "", ""});
    EXPECT_NEAR(sum.item<double>() / world.size / expected.item<double>(), 1, 1e-12);

    models.for_parts([&](Part& part, const auto& expected) {
      for (const auto& [name, leaf] : named_parameters(part)) {
        expect_close(whole_of(mesh, leaf, leaf.grad()), expected[name].grad(), name);
      }
    });
    std::vector<torch::Tensor> whole_weights = models.whole->parameters();
    const double norm = torch::nn::utils::clip_grad_norm_(whole_weights, 0.05);
    EXPECT_NEAR(pipeline.clip_grad_norm_(0.05).item<double>() / norm, 1, 1e-6);
    whole_sgd.step();
    sgd.step();
  }
  models.for_parts([&](Part& part, const auto& expected) {
    for (const auto& [name, leaf] : named_parameters(part)) {
      expect_close(whole_of(mesh, leaf, leaf.detach()), expected[name].detach(), name);
    }
  });
}

void expect_equal_steps(const Layout& layout) {
  SCOPED_TRACE(text_of(layout));
  int ranks = 1;
  for (const MeshAxis& axis : layout.axes) ranks *= axis.size;
  run_ranks(ranks, [&](const World& world) { expect_equal_steps(world, layout); });
}

TEST(PipelineParity, LossesGradientsAndNormsAreThoseOfOneRank) {
  expect_equal_steps({{{"pp", 2}}, Order::kGPipe, 1, 4});
  expect_equal_steps({{{"pp", 2}}, Order::k1F1B, 1, 5});
  expect_equal_steps({{{"pp", 4}}, Order::k1F1B, 1, 3});
  expect_equal_steps({{{"pp", 3}}, Order::k1F1B, 1, 7});
  expect_equal_steps({{{"pp", 2}}, Order::kInterleaved, 2, 4});
  expect_equal_steps({{{"pp", 3}}, Order::kInterleaved, 2, 6});
  expect_equal_steps({{{"pp", 1}}, Order::kInterleaved, 3, 2});
  expect_equal_steps({{{"pp", 2}}, Order::kZeroBubble, 1, 5});
  expect_equal_steps({{{"pp", 4}}, Order::kZeroBubble, 1, 3});
  expect_equal_steps({{{"pp", 3}}, Order::kZeroBubble, 1, 7});
  expect_equal_steps({{{"pp", 1}}, Order::kZeroBubble, 1, 2});
}

TEST(PipelineParity, StagesMayBeSharded) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    expect_equal_steps({{{"pp", 2}, {"shard", 2}}, Order::k1F1B, 1, 4, strategy});
    expect_equal_steps({{{"pp", 2}, {"shard", 2}}, Order::kInterleaved, 2, 4, strategy});
    expect_equal_steps({{{"pp", 2}, {"shard", 2}}, Order::kZeroBubble, 1, 4, strategy});
  }
}

// By the counters, in a step of four microbatches.
TEST(PipelineParity, WeightsAreGatheredOnceInAStepOrForEachMicrobatch) {
  if (one_copy_of_weights()) GTEST_SKIP() << "nothing is gathered here";
  constexpr int64_t kUnits = kBlocks + 1, kMicrobatches = 4;
  const auto gathers_of = [&](Strategy strategy, const std::function<void(int64_t)>& expect) {
    run_ranks(4, [&](const World& world) {
      const Layout layout{{{"pp", 2}, {"shard", 2}}, Order::k1F1B, 1, kMicrobatches, strategy};
      const Mesh mesh = Mesh::parallel(world, layout.axes);
      Models models(mesh, layout);
      Pipeline pipeline(mesh, models.stages, layout.order);
      torch::optim::SGD sgd(models.leaves(), 0.1);
      const Batch batch(0, 2, kMicrobatches);
      for (int step = 0; step < 2; ++step) {
        models.stages[0].unit->reset_counters();
        std::vector<at::Tensor> inputs;
        for (int m = 0; m < kMicrobatches; ++m) inputs.push_back(batch.inputs[mesh.index("shard")][m].clone());
        const auto loss = [&](const at::Tensor& y, int m) { return loss_of(y, batch.targets[mesh.index("shard")][m]); };
        pipeline.step(inputs, loss);
        expect(models.stages[0].unit->counters().gathers);
        sgd.step();
      }
    });
  };
  gathers_of(Strategy::kOptimGrads, [&](int64_t gathers) { EXPECT_EQ(gathers, kUnits); });
  // A forward and a backward of each, but that one may follow the other without a gather in between.
  gathers_of(Strategy::kOptimGradsParams, [&](int64_t gathers) {
    EXPECT_LE(gathers, 2 * kMicrobatches * kUnits);
    EXPECT_GE(gathers, kMicrobatches * kUnits);
  });
}

TEST(PipelineParity, ForwardsAloneGiveTheLastStagesOutputs) {
  for (const auto& [order, own] : {std::pair(Order::k1F1B, 1), std::pair(Order::kInterleaved, 2)}) {
    run_ranks(2, [&, order = order, own = own](const World& world) {
      const Layout layout{{{"pp", 2}}, order, own, 4};
      const Mesh mesh = Mesh::parallel(world, layout.axes);
      Models models(mesh, layout);
      Pipeline pipeline(mesh, models.stages, order);
      const Batch batch(0, 1, 4);
      std::vector<at::Tensor> inputs;
      for (int m = 0; m < 4; ++m) inputs.push_back(batch.inputs[0][m].clone());
      const std::vector<at::Tensor> outputs = pipeline.forward(inputs);
      ASSERT_EQ(outputs.size(), pipeline.has_last_stage() ? 4U : 0U);
      const torch::NoGradGuard no_grad;
      for (size_t m = 0; m < outputs.size(); ++m) {
        expect_close(outputs[m], models.whole->forward(batch.inputs[0][static_cast<int64_t>(m)].clone()), "output");
        EXPECT_FALSE(outputs[m].requires_grad());
      }
    });
  }
}

// More messages than a transport keeps unread.
TEST(PipelineParity, ManyMicrobatchesPass) { expect_equal_steps({{{"pp", 2}}, Order::kGPipe, 1, 300}); }

// Beside the tensors: what stages add up on the way forward comes back to each of them, before its backward.
TEST(PipelineParity, NotesTravelForwardAndBack) {
  for (const auto& [order, ranks, own, microbatches] :
       {std::tuple(Order::kGPipe, 2, 1, 5), std::tuple(Order::k1F1B, 3, 1, 4), std::tuple(Order::kInterleaved, 2, 2, 4),
        std::tuple(Order::kZeroBubble, 3, 1, 4), std::tuple(Order::kInterleaved, 1, 3, 2)}) {
    run_ranks(ranks, [&, order = order, own = own, microbatches = microbatches](const World& world) {
      const Layout layout{{{"pp", world.size}}, order, own, microbatches};
      Models models(Mesh::parallel(world, layout.axes), layout);
      Pipeline pipeline(Mesh::parallel(world, layout.axes), models.stages, order);
      const Batch batch(0, 1, microbatches);
      std::vector<at::Tensor> inputs;
      for (int m = 0; m < microbatches; ++m) inputs.push_back(batch.inputs[0][m].clone());
      const int stages = world.size * own;
      int backwards = 0;
      const pipeline::Notes notes{[](const at::Tensor& given, int stage, int m) {
                                    const at::Tensor mine = torch::full({2}, 100 * m + stage, torch::kDouble);
                                    return given.defined() ? mine + given : mine;
                                  },
                                  [&](const at::Tensor& given, int stage, int m) {
                                    ++backwards;
                                    const int behind = stages - 1 - stage;  // each of which has added 1
                                    EXPECT_EQ(given[0].item<double>(),
                                              stages * 100 * m + stages * (stages - 1) / 2 + behind);
                                    return given + 1;
                                  }};
      const auto loss = [&](const at::Tensor& y, int m) { return loss_of(y, batch.targets[0][m]); };
      pipeline.step(inputs, loss, pipeline::LossesAre::kAveraged, notes);
      EXPECT_EQ(backwards, own * microbatches);
      EXPECT_THAT(
          [&] {
            pipeline.step(inputs, loss, pipeline::LossesAre::kAveraged, {notes.after_forward, {}});
          },
          ThrowsMessage<Error>(HasSubstr("expected both or none")));
    });
  }
}

// A gradient that overflows in one stage costs the step in all; else both get what one rank would.
TEST(PipelineParity, OneLossScaleForAllStages) {
  run_ranks(2, [](const World& world) {
    const Layout layout{{{"pp", 2}}, Order::k1F1B, 1, 2};
    Models models(Mesh::parallel(world, layout.axes), layout);
    Pipeline pipeline(Mesh::parallel(world, layout.axes), models.stages);
    torch::optim::SGD sgd(models.leaves(), 0.1);
    GradScaler scaler({.init_scale = 1024});
    const Batch batch(0, 1, 2);
    for (const int overflows_in : {1, 0, -1}) {
      models.parts[0]->zero_grad();
      if (!pipeline.has_last_stage()) scaler.expect_scaled();
      const double scale = scaler.current_scale();
      const double loss =
          pipeline.step({batch.inputs[0][0].clone(), batch.inputs[0][1].clone()},
                        [&](const at::Tensor& y, int m) { return scaler.scale(loss_of(y, batch.targets[0][m])); });
      const double norm = pipeline.grad_norm(1).value() / scale;
      if (world.rank == overflows_in) models.leaves()[0].mutable_grad().fill_(INFINITY);
      const GradNorm found = scaler.grad_norm_from(pipeline.grad_norm(1).norm, models.leaves(), 1e9);
      EXPECT_EQ(std::isfinite(found.value()), overflows_in < 0);
      EXPECT_EQ(scaler.step(sgd), overflows_in < 0 ? ScaledStep::kTaken : ScaledStep::kSkipped);
      scaler.update();
      EXPECT_EQ(scaler.current_scale(), overflows_in < 0 ? scale : scale / 2);
      if (overflows_in >= 0) continue;
      const torch::Tensor expected = (loss_of(models.whole->forward(batch.inputs[0][0].clone()), batch.targets[0][0]) +
                                      loss_of(models.whole->forward(batch.inputs[0][1].clone()), batch.targets[0][1])) /
                                     2;
      expected.backward();
      EXPECT_NEAR(loss / scale / expected.item<double>(), 1, 1e-6);
      EXPECT_NEAR(norm, found.value(), 1e-6 * norm);
      models.for_parts([&](Part& part, const auto& weights) {
        for (const auto& item : part.named_parameters())
          expect_close(item.value().grad(), weights[item.key()].grad(), 1e-6, item.key());
      });
    }
  });
}

// ---- what goes wrong

std::vector<Stage> identity_stages(int count) {
  return std::vector<Stage>(static_cast<size_t>(count), Stage{[](const at::Tensor& x, int) { return x * 2; }, {}, {}});
}

at::Tensor sum_of(const at::Tensor& y, int) { return y.sum(); }

TEST(PipelineMistakes, AStageIsNoModelOfAllRanks) {
  run_ranks(4, [](const World& world) {
    const Layout layout{{{"pp", 2}, {"shard", 2}}, Order::k1F1B, 1, 4, Strategy::kOptimGrads};
    const Mesh mesh = Mesh::parallel(world, layout.axes);
    Models models(mesh, layout);
    EXPECT_THAT([&] { full_state_dict(*models.parts[0]); }, ThrowsMessage<Error>(HasSubstr("a stage of a pipeline")));
    const auto other = make_seeded(8, [] { return std::make_shared<Part>(); });
    EXPECT_THAT([&] { fully_shard(*other, Mesh::shard(world)); }, ThrowsMessage<Error>(HasSubstr("axis 'pp'")));
  });
}

TEST(PipelineMistakes, RanksThatDisagreeAreNamed) {
  run_ranks(2, [](const World& world) {
    const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
    EXPECT_THAT([&] { Pipeline(mesh, identity_stages(1 + world.rank), Order::kInterleaved); },
                ThrowsMessage<Error>(HasSubstr(world.rank == 0 ? "rank 1 has 2 stages" : "rank 0 has 1 stages")));
    Pipeline pipeline(mesh, identity_stages(1));
    const auto step = [&] {
      pipeline.step(std::vector<at::Tensor>(static_cast<size_t>(4 + world.rank), torch::ones({2})), sum_of);
    };
    EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr(world.rank == 0 ? "rank 1 has 5 microbatches, this one 4"
                                                                     : "rank 0 has 4 microbatches, this one 5")));
  });
}

TEST(PipelineMistakes, AnAbsentRankIsNamed) {
  run_ranks(
      2,
      [](const World& world) {
        const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
        Pipeline pipeline(mesh, identity_stages(1));
        // Neither the activation nor its gradient comes.
        if (world.rank == 1) return;
        EXPECT_THAT([&] { pipeline.step({torch::ones({2})}, sum_of); },
                    ThrowsMessage<Error>(::testing::AllOf(HasSubstr("'pipeline'"), HasSubstr("rank 1"))));
      },
      std::chrono::seconds(2));
}

TEST(PipelineMistakes, WhatCannotBeHandedOnIsRefused) {
  run_ranks(1, [](const World& world) {
    const Mesh mesh(world, {{"pp", 1}});
    EXPECT_THAT([&] { Pipeline(Mesh::shard(world), identity_stages(1)); },
                ThrowsMessage<Error>(HasSubstr("no axis 'pp'")));
    EXPECT_THAT([&] { Pipeline(mesh, {Stage{}}); }, ThrowsMessage<Error>(HasSubstr("without a forward")));
    Pipeline integers(mesh, {Stage{[](const at::Tensor& x, int) { return x.to(torch::kLong); }, {}, {}}});
    EXPECT_THAT([&] { integers.step({torch::ones({2})}, sum_of); },
                ThrowsMessage<Error>(HasSubstr("stage 0 returned a tensor of Long")));
    Pipeline pipeline(mesh, identity_stages(1));
    EXPECT_THAT([&] { pipeline.step({torch::ones({2})}, sum_of); },
                ThrowsMessage<Error>(HasSubstr("without gradient")));
    EXPECT_THAT([&] { pipeline.step({}, sum_of); }, ThrowsMessage<Error>(HasSubstr("0 microbatches")));
    EXPECT_THAT([&] { pipeline.step({torch::ones({2})}, nullptr); }, ThrowsMessage<Error>(HasSubstr("no loss")));
  });
}

// What a backward runs by the way gives weights their gradients at once.
class BackwardThatDoesNotSplit : public ::testing::TestWithParam<bool> {};

TEST_P(BackwardThatDoesNotSplit, IsRefused) {
  const bool recomputes = GetParam();
  run_ranks(
      2,
      [&](const World& world) {
        const Layout layout{{{"pp", 2}}, Order::kZeroBubble, 1, 2, Strategy::kOptim};
        const Mesh mesh = Mesh::parallel(world, layout.axes);
        Models models(mesh, layout);
        const auto forward = models.stages[0].forward;
        models.stages[0].forward = [=](const at::Tensor& x, int microbatch) {
          if (recomputes)
            return recompute([=](const at::Tensor& again) { return forward(again.clone(), microbatch); }, x);
          const at::Tensor y = forward(x, microbatch);
          y.register_hook([=](const at::Tensor&) {
            const at::AutoGradMode with_gradients(true);
            forward(x.detach(), microbatch).sum().backward();
          });
          return y;
        };
        Pipeline pipeline(mesh, models.stages, layout.order);
        const auto step = [&] {
          pipeline.step(std::vector<at::Tensor>(2, torch::ones({kRows, kWidth}, torch::kDouble)), sum_of);
        };
        if (world.rank == 1) {
          EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr(recomputes ? "[recompute] got a backward for the gradients"
                                                                      : "stage 1: got gradients of weights")));
        } else {
          EXPECT_THROW(step(), Error);
        }
      },
      std::chrono::seconds(2));
}
INSTANTIATE_TEST_SUITE_P(PipelineMistakes, BackwardThatDoesNotSplit, ::testing::Bool());

TEST(PipelineMistakes, MicrobatchesHaveOneSize) {
  run_ranks(
      2,
      [](const World& world) {
        const Mesh mesh = Mesh::parallel(world, {{"pp", 2}});
        Pipeline pipeline(mesh, identity_stages(1));
        const auto step = [&] { pipeline.step({torch::ones({2}), torch::ones({3})}, sum_of); };
        if (world.rank == 0) {
          EXPECT_THAT(step, ThrowsMessage<Error>(
                                ::testing::AllOf(HasSubstr("output of stage 0"), HasSubstr("[3]"), HasSubstr("[2]"))));
        } else {
          EXPECT_THROW(step(), Error);
        }
      },
      std::chrono::seconds(2));
}

}  // namespace
}  // namespace fsdp::pipeline_test
