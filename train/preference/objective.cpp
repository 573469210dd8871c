#include "train/preference/objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "io/base/hash.h"
#include "io/base/input_file.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "io/hub/model_identity.h"
#include "train/data/batch.h"

namespace fsdp::train {
namespace {

[[noreturn]] void refuse_preference(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[train] tune.loss: " + message);
}

void check_data(const Config& config, const Splits& splits) {
  const bool wants_pairs = config.tune.loss == "dpo";
  if (splits.train.is_of_pairs() == wants_pairs) return;
  refuse_preference(wants_pairs ? "got dpo with a data set of single documents, expected pairs. Prepare them by `fsdp "
                                  "prepare --chat auto --pairs`."
                                : "got sft with a data set of pairs, expected single documents. Set tune.loss = "
                                  "\"dpo\", or prepare the data without --pairs.");
}

// Of the weights that training begins with: the model's files, or the seed, how they rest, and an adapter's.
std::string identify_start(const Config& config, const ModelChoice& choice) {
  std::string text = choice.weights ? "model " + io::identify_model(*choice.weights) + " as " + config.tune.base
                                    : "random " + std::to_string(config.train.seed) + " " +
                                          models::to_hugging_face(choice.config).dump();
  if (config.tune.lora_init != "random") {  // then rounding is another
    text += " begun by " + config.tune.lora_init + " of " + config.tune.lora_targets + ", " +
            std::to_string(config.tune.lora_rank);
  }
  if (config.tune.lora_from.empty()) return text;
  const std::filesystem::path from = config.tune.lora_from;
  for (const char* file : {"adapter_model.safetensors", io::kManifestName}) {  // of a folder, or of a checkpoint
    if (io::can_be_found(from / file)) return text + " with " + io::hash_text(io::hash_file(from / file));
  }
  return text + " with " + config.tune.lora_from;
}

std::filesystem::path references_file(const PackedSplit& split, const std::string& name, const std::string& identity) {
  return split.dataset().folder() / ("references-" + name + "-" + io::hash_text(io::hash_bytes(identity)) + ".bin");
}

}  // namespace

at::Tensor PreferenceObjective::loss_of(models::Decoder& model, const Batch& batch, const References& references,
                                        PreferenceSums& sums) const {
  const at::Tensor logs = answer_logs(model, batch);
  std::vector<at::Tensor> losses;
  for (size_t row = 0; row < batch.pairs.size(); ++row) {
    const at::Tensor both = logs[static_cast<int64_t>(row)];
    const at::Tensor margin = reward_margin(both[0], both[1], references.of(batch.pairs[row].sequence), rule);
    const double value = margin.item<double>();
    sums.margin += value;
    sums.correct += value > 0 ? 1 : 0;
    sums.pairs += 1;
    losses.push_back(preference_loss(margin, rule));
  }
  const at::Tensor loss = at::stack(losses).sum();
  sums.loss += loss.item<double>();
  return loss;
}

PreferenceSums PreferenceObjective::evaluate(ShardedModel& model, const World& world, const PackedSplit& split,
                                             int64_t num_pairs) const {
  const ForwardOnly scope(model.root);
  const at::NoGradGuard no_grad;
  const c10::Device device = computing_device(model.decoder);
  const int64_t count = num_pairs > 0 ? std::min(num_pairs, split.num_sequences()) : split.num_sequences();
  const Part mine = part_of(count, world.rank, world.size);
  PreferenceSums sums;
  for (int64_t round = 0; round < (count + world.size - 1) / world.size; ++round) {
    const bool counts = mine.begin + round < mine.end;
    PreferenceSums company;
    const Batch batch = make_batch(split, std::vector{counts ? mine.begin + round : 0});
    loss_of(model.decoder, on_device(batch, device), *heldout, counts ? sums : company);
  }
  const at::Tensor all =
      sum_over_ranks(world, at::tensor({sums.loss, sums.margin, sums.correct, sums.pairs}, at::kDouble));
  const double* values = all.const_data_ptr<double>();
  return {values[0], values[1], values[2], values[3]};
}

void check_objective(const Config& config, const models::DecoderConfig& model, const Splits& splits) {
  check_data(config, splits);
  if (config.tune.loss != "dpo") return;
  const std::vector<std::pair<bool, std::string>> misfits = {
      {config.mesh.pp > 1, "mesh.pp > 1"},
      {config.mesh.tp > 1, "mesh.tp > 1"},
      {config.mesh.cp > 1, "mesh.cp > 1"},
      {model.experts.count > 0, "a model of experts"},
      {config.train.z_loss > 0, "train.z_loss"},
      {config.train.label_smoothing > 0, "train.label_smoothing (set tune.dpo_label_smoothing)"},
      {config.train.cuda_graphs, "train.cuda_graphs"},
      {config.data.sequence_warmup_steps > 0, "data.sequence_warmup_steps, which would cut answers"},
      {splits.train.sources().size() > 1, "a mixture as data.path"},
      {config.tune.lora_dropout > 0, "tune.lora_dropout"}};
  for (const auto& [is_there, what] : misfits) {
    if (is_there) refuse_preference("got dpo with " + what + ", which it does not support. Leave one of them out.");
  }
}

PreferenceObjective make_objective(const Config& config, const World& world, ShardedModel& model, const Splits& splits,
                                   const ModelChoice& choice, const std::function<void(const std::string&)>& tell) {
  const std::string start = identify_start(config, choice);
  const auto references_of = [&](const PackedSplit& split, const std::string& name) {
    const std::string identity = start + "; " + name + " of " +
                                 io::hash_text(io::hash_file(split.dataset().folder() / "dataset.json")) + "; " +
                                 config.shard.precision;
    return References::find_or_compute(model, world, split, references_file(split, name, identity), identity, tell);
  };
  PreferenceObjective objective;
  objective.rule = {config.tune.dpo_beta, config.tune.dpo_label_smoothing};
  objective.train = references_of(splits.train, config.data.train_split);
  if (splits.heldout) objective.heldout = references_of(*splits.heldout, config.data.heldout_split);
  return objective;
}

}  // namespace fsdp::train
