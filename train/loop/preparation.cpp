#include "train/loop/preparation.h"

#include <utility>

#include "train/axes/axis_checks.h"
#include "train/base/agreement.h"
#include "train/base/device.h"
#include "train/config/precision_checks.h"
#include "train/config/sum_tree.h"
#include "train/data/batch_source.h"
#include "train/data/data_tokenizer.h"
#include "train/generate/samples.h"
#include "train/model/graphed_blocks.h"
#include "train/preference/objective.h"

namespace fsdp::train {
namespace {

void check_content(const CheckpointConfig& config, const Tuning& tuning) {
  if (config.content != "adapter" || tuning.lora) return;
  throw Error(ErrorCode::kUsage,
              "[checkpoint] checkpoint.content: got \"adapter\" in a run that trains other weights, expected \"all\". "
              "Leave it out, or set tune.method = \"lora\".");
}

}  // namespace

Preparation prepare(const Config& config, const World& world, ThreadPlan threads) {
  c10::Device device = c10::kCPU;
  std::optional<Splits> splits;
  std::optional<ModelChoice> choice;
  std::optional<tokenizer::Tokenizer> tokenizer;
  Tuning tuning;
  on_all_ranks(world, [&] {
    check_graphs(config);
    check_precision(config);
    const RankPlace place = rank_place(make_mesh(world, config.shard.replicas, config.mesh));
    device = choose_device(config.shard.device, "[train] shard.device", world);
    splits = open_splits(config);
    const io::TokenDataset& data = splits->train.dataset();
    check_batch(config.train, place, splits->train);
    sum_tree_of(config, place.num_data);  // is there one?
    choice = choose_model(config.model, data.vocab_size(), data.eos_id());
    check_axes(config, choice->config, place);
    check_base_format(config, *choice);
    tuning = choose_tuning(config.tune, *choice);
    check_content(config.checkpoint, tuning);
    fit_model(choice->config, config, splits->train);
    check_objective(config, choice->config, *splits);
    tokenizer = tokenizer_of(data);
    [[maybe_unused]] const SampleWriter can_be_made(config.sample, config.train.seed, tokenizer);
    verify_splits(*splits, config.check.data);
  });
  return {std::move(threads), device, std::move(*splits), std::move(*choice), std::move(tokenizer), std::move(tuning)};
}

}  // namespace fsdp::train
