#include "train/model/tuning.h"

#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "io/hub/model_identity.h"
#include "train/base/format.h"
#include "train/config/precision_checks.h"
#include "train/model/frozen.h"
#include "train/model/parallelize.h"

namespace fsdp::train {
namespace {

// Without memory: only names and shapes are wanted.
models::Decoder outline(const ModelChoice& choice) {
  return deferred([&] { return models::Decoder(choice.config); });
}

models::LoraConfig lora_config(const TuneConfig& config, const ModelChoice& choice, LoraBase base) {
  if (!config.frozen.empty() || !config.trained.empty()) {
    throw Error(ErrorCode::kUsage,
                "[tune] tune.frozen and tune.trained: got them with tune.method = \"lora\", which freezes everything "
                "but its adapters, expected them with \"full\" only. Leave them out.");
  }
  if (!choice.weights && base == LoraBase::kLoaded) {
    throw Error(ErrorCode::kUsage,
                "[tune] tune.method = \"lora\": got a model with random weights, expected a trained one: the adapter "
                "is worth nothing without its base. Set model.path to a folder with weights.");
  }
  models::LoraConfig lora;
  lora.rank = config.lora_rank;
  lora.alpha = config.lora_alpha;
  lora.dropout = config.lora_dropout;
  lora.targets = split_list(config.lora_targets);
  lora.divides_by_root = config.lora_scale == "root";
  lora.kind = config.lora_kind == "dora" ? models::AdapterKind::kDora : models::AdapterKind::kLora;
  models::Decoder tried = outline(choice);
  models::add_lora(tried, lora, /*seed=*/0);
  if (lora.targets == std::vector<std::string>{"all-linear"}) lora.targets = models::linear_names(tried);
  return lora;
}

LoraInit parse_lora_init(const TuneConfig& config, const ModelChoice& choice) {
  if (config.lora_init == "random") return LoraInit::kRandom;
  const std::pair<bool, std::string> misfits[] = {
      {config.lora_kind == "dora", "tune.lora_kind = \"dora\", whose lengths of rows are those of a whole base"},
      {!config.lora_from.empty(), "tune.lora_from, which says what adapters begin with"},
      {choice.has_codes, "a model.path of codes, of which nothing can be taken"}};
  for (const auto& [is_asked, what] : misfits) {
    if (!is_asked) continue;
    throw Error(ErrorCode::kUsage, "[tune] tune.lora_init: got " + config.lora_init + " with " + what +
                                       ", expected one of the two. Leave one of them out.");
  }
  return LoraInit::kPrincipal;
}

std::vector<std::string> parameter_names(const ModelChoice& choice) {
  return outline(choice)->named_parameters().keys();
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// A stage of a pipeline may lack some of the targets, or all.
void add_adapters(models::LoraConfig lora, models::Decoder& decoder, uint64_t seed) {
  const std::vector<std::string> known = models::linear_names(decoder);
  std::erase_if(lora.targets, [&](const std::string& target) {
    return std::find(known.begin(), known.end(), target) == known.end();
  });
  if (!lora.targets.empty()) return models::add_lora(decoder, lora, seed);
  for (const at::Tensor& parameter : decoder->parameters()) parameter.requires_grad_(false);
}

}  // namespace

Tuning choose_tuning(const TuneConfig& config, const ModelChoice& choice, LoraBase base) {
  Tuning tuning;
  if (config.method != "lora" && config.lora_kind != "lora") {
    throw Error(ErrorCode::kUsage, "[tune] tune.lora_kind: got " + config.lora_kind + " with tune.method = \"" +
                                       config.method + "\", expected \"lora\". Set that, or leave tune.lora_kind out.");
  }
  if (config.method != "lora" && config.lora_init != "random") {
    throw Error(ErrorCode::kUsage, "[tune] tune.lora_init: got " + config.lora_init + " with tune.method = \"" +
                                       config.method + "\", expected \"lora\". Set that, or leave tune.lora_init out.");
  }
  if (config.method != "lora" && !config.lora_from.empty()) {
    throw Error(ErrorCode::kUsage, "[tune] tune.lora_from: got it with tune.method = \"" + config.method +
                                       "\", expected \"lora\". Set that, or leave tune.lora_from out.");
  }
  if (config.method == "lora") {
    tuning.lora = lora_config(config, choice, base);
    tuning.base = parse_base_format(config.base);
    tuning.init = parse_lora_init(config, choice);
  } else if (!config.frozen.empty() || !config.trained.empty()) {
    tuning.frozen = choose_frozen(config, parameter_names(choice));
  }
  return tuning;
}

at::ScalarType base_type(const Tuning& tuning, const ShardConfig& config) {
  const at::ScalarType computed = stored_precision(config).param.value_or(at::kFloat);
  return tuning.lora || keeps_narrow_weights(config) ? computed : at::kFloat;
}

bool needs_its_base(const Config& config, const Tuning& tuning) {
  return config.checkpoint.content == "adapter" || tuning.init == LoraInit::kPrincipal;
}

std::string identify_base(const Tuning& tuning, const io::ModelFolder& weights) {
  const std::string format = has_codes(tuning.base) ? " as " + describe(tuning.base) : "";
  if (tuning.init == LoraInit::kRandom) return io::identify_model(weights) + format;
  return io::identify_model(weights) +
         format_text(" less %lld singular values, in factors for %.17g of ", static_cast<long long>(tuning.lora->rank),
                     tuning.lora->scale()) +
         join(tuning.lora->targets) + format;
}

void apply_tuning(const Tuning& tuning, models::Decoder& decoder, uint64_t seed) {
  if (tuning.lora) {
    add_adapters(*tuning.lora, decoder, seed);
    keep_as_codes(decoder, tuning.base);  // before a value is asked for
    return;
  }
  const std::set<std::string> frozen(tuning.frozen.begin(), tuning.frozen.end());
  for (auto& parameter : decoder->named_parameters()) {
    if (frozen.count(parameter.key()) > 0) parameter.value().requires_grad_(false);
  }
}

int64_t num_parameters(const ShardedModel& model) {
  int64_t count = 0;
  for (const WholeTensor& tensor : whole_tensors(model)) count += tensor.numel();
  return count;
}

int64_t weight_bytes(const ShardedModel& model) {
  if (!model.of_all_stages.empty()) return num_parameters(model) * static_cast<int64_t>(sizeof(float));
  int64_t bytes = 0;
  for (const auto& [name, leaf] : named_parameters(*model.decoder))
    bytes += c10::multiply_integers(whole_sizes(leaf)) * static_cast<int64_t>(leaf.element_size());
  return bytes;
}

TrainableSize trainable_size(const ShardedModel& model) {
  TrainableSize size;
  for (const WholeTensor& tensor : whole_tensors(model)) size.parameters += tensor.trains ? tensor.numel() : 0;
  for (const at::Tensor& leaf : parameters(*model.decoder)) {
    if (leaf.requires_grad()) size.local_bytes += static_cast<int64_t>(leaf.nbytes());
  }
  return size;
}

double trained_flops_per_token(const ShardedModel& model, int64_t sequence_length) {
  const models::DecoderConfig& config = model.decoder->config();
  double frozen = 0;
  for (const WholeTensor& tensor : whole_tensors(model)) {
    const bool is_looked_up = tensor.name == "model.embed_tokens.weight" && !config.tie_word_embeddings;
    if (!tensor.trains && tensor.sizes.size() == 2 && !is_looked_up) frozen += static_cast<double>(tensor.numel());
  }
  return models::flops_per_token(config, sequence_length) - 2 * frozen;
}

std::string describe(const Tuning& tuning, const ShardedModel& model) {
  if (!tuning.lora && tuning.frozen.empty()) return "";
  const int64_t trained = trainable_size(model).parameters, all = num_parameters(model);
  const std::string how =
      tuning.lora
          ? format_text(
                "%s of rank %lld, alpha %g on %s", tuning.lora->kind == models::AdapterKind::kDora ? "DoRA" : "LoRA",
                static_cast<long long>(tuning.lora->rank), tuning.lora->alpha, join(tuning.lora->targets).c_str()) +
                (tuning.init == LoraInit::kPrincipal ? ", begun with the largest singular values" : "") +
                (has_codes(tuning.base) ? ", base as " + describe(tuning.base) : "")
          : std::to_string(tuning.frozen.size()) + " tensors are frozen";
  return how + ": " + with_thousands(trained) + " of " + with_thousands(all) + " parameters train (" +
         format_text("%.2f %%)", 100 * static_cast<double>(trained) / static_cast<double>(all));
}

}  // namespace fsdp::train
