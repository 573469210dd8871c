// Fine-tuning of the small model of tests/data as a rank does it.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/load_weights.h"
#include "tests/support/ranks.h"
#include "tests/train/model/answer_batches.h"
#include "train/loop/trainer.h"
#include "train/model/adapters/principal_start.h"
#include "train/model/recomputation.h"
#include "train/model/tuning.h"
#include "train/model/weights.h"

namespace fsdp::testing {

inline constexpr uint64_t kTuningSeed = 20261;
inline constexpr int kTuningSteps = 4;

inline std::filesystem::path base_folder() { return std::filesystem::path(FSDP_TEST_DATA_DIR) / "models/smollm3-mini"; }

inline train::ModelChoice base_choice() {
  return {models::read_decoder_config(base_folder()), io::ModelFolder::open(base_folder())};
}

inline models::Decoder load_base() {
  models::Decoder decoder(models::read_decoder_config(base_folder()));
  models::load_weights(*decoder, decoder->config(), io::ModelFolder::open(base_folder()));
  return decoder;
}

inline train::TrainConfig tuning_train_config() {
  train::TrainConfig config;
  config.steps = kTuningSteps;
  config.lr = 1e-3;
  config.warmup_steps = 1;
  config.clip = 0.5;
  return config;
}

struct TuningPlan {
  train::TuneConfig tune;
  train::ShardConfig shard = {};
  int64_t micro_rows = 2;
  train::Recomputation recomputation = {};
  std::string projections = "separate";
};

// One rank's part of a fine-tuning; built as `fsdp train` builds it. COLLECTIVE.
class TuningRun {
 public:
  TuningRun(const World& world, const TuningPlan& plan)
      : tuning_(train::choose_tuning(plan.tune, base_choice())),
        model_(build(world, plan)),
        batches_(world.rank, world.size, plan.micro_rows, model_.decoder->config().vocab_size, kTuningSeed),
        trainer_(tuning_train_config(), world, batches_, model_) {}

  double step() { return trainer_.step().loss; }
  train::ShardedModel& model() { return model_; }
  train::Trainer& trainer() { return trainer_; }
  const train::Tuning& tuning() const { return tuning_; }

 private:
  train::ShardedModel build(const World& world, const TuningPlan& plan) const {
    models::Decoder decoder = deferred([&] {
      models::Decoder whole(base_choice().config, at::TensorOptions().dtype(train::base_type(tuning_, plan.shard)));
      train::zero_parameters(*whole);
      train::apply_tuning(tuning_, whole, kTuningSeed);
      return whole;
    });
    train::set_recomputation(decoder, plan.recomputation);
    train::ShardedModel model = train::parallelize(std::move(decoder), train::make_mesh(world, plan.shard.replicas),
                                                   train::shard_options(plan.shard));
    train::set_projections(model, plan.projections);
    const io::ModelFolder folder = *base_choice().weights;
    if (tuning_.init == train::LoraInit::kRandom) {
      train::load_weights(model, folder);
      return model;
    }
    const train::AdapterStart start = train::principal_start(model, world, folder, *tuning_.lora, kTuningSeed);
    train::load_weights(model, folder, &start);
    train::begin_with(model, start);
    return model;
  }

  train::Tuning tuning_;
  train::ShardedModel model_;
  AnswerBatches batches_;
  train::Trainer trainer_;
};

// The same training by LibTorch alone: the whole batch at once, `trained` its parameters. `before` puts them into the
// model, `after` gives them their gradients. Returns the losses.
inline std::vector<double> train_plainly(models::Decoder& model, const std::vector<at::Tensor>& trained,
                                         const std::function<void()>& before, const std::function<void()>& after) {
  const train::TrainConfig config = tuning_train_config();
  const train::LrSchedule schedule{config.lr, config.min_lr_ratio, config.warmup_steps, config.steps};
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : trained) (parameter.dim() >= 2 ? decayed : others).push_back(parameter);
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions().betas({config.beta1, config.beta2}).eps(config.eps).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(config.weight_decay));
  groups.emplace_back(others, options(0));
  torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions());
  const AnswerBatches batches(0, 1, AnswerBatches::kRows, model->config().vocab_size, kTuningSeed);
  std::vector<double> losses;
  for (int step = 0; step < kTuningSteps; ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(schedule.at(step));
    before();
    model->zero_grad();
    const train::Batch batch = batches.microbatch(step, 0);
    const at::Tensor logits_NV = model->forward(batch.input_ids_BT).flatten(0, 1);
    const at::Tensor loss = at::cross_entropy_loss(logits_NV, batch.targets_N);  // the mean over targets
    loss.backward();
    after();
    losses.push_back(loss.item<double>());
    torch::nn::utils::clip_grad_norm_(trained, config.clip);
    optimizer.step();
  }
  return losses;
}

// This rank's slices of the parameters against whole ones of the same names.
inline void expect_slices(train::ShardedModel& model, const std::map<std::string, at::Tensor>& expected,
                          double tolerance) {
  for (const auto& [name, leaf] : named_parameters(*model.decoder)) {
    const auto found = expected.find(name);
    if (found == expected.end() || leaf.numel() == 0) continue;
    const LocalRange range = local_range(leaf);
    const at::Tensor slice = found->second.detach().flatten().slice(0, range.begin, range.end).to(leaf.dtype());
    EXPECT_LE((leaf.detach() - slice).abs().max().item<double>(), tolerance) << name;
  }
}

}  // namespace fsdp::testing
