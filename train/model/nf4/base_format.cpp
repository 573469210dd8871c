#include "train/model/nf4/base_format.h"

#include "fsdp/base/error.h"
#include "models/nf4_base.h"

namespace fsdp::train {
namespace {

struct BaseMisfit {
  bool is_asked;
  std::string setting, instead;
};

bool multiplies_decoded(const std::string& precision) { return precision == "fp32" || precision == "bf16"; }

}  // namespace

BaseFormat parse_base_format(const std::string& name) {
  if (name == "nf4_all") return BaseFormat::kNf4All;
  return name == "nf4" ? BaseFormat::kNf4 : BaseFormat::kAsComputed;
}

std::string describe(BaseFormat base) {
  if (!has_codes(base)) return "";
  return base == BaseFormat::kNf4All ? "NF4 codes, embeddings and head too" : "NF4 codes";
}

void keep_as_codes(const models::Decoder& decoder, BaseFormat base) {
  if (base == BaseFormat::kNf4) models::keep_blocks_as_nf4(decoder);
  if (base == BaseFormat::kNf4All) models::keep_all_as_nf4(decoder);
}

void check_base_format(const Config& config, const ModelChoice& choice) {
  if (!has_codes(parse_base_format(config.tune.base))) {
    if (!choice.has_codes) return;
    throw Error(ErrorCode::kUsage, "[tune] model.path: got " + config.model.path +
                                       ", whose quantization_config says that its weights are codes in 4 or 8 bits, "
                                       "expected numbers. Set tune.method to lora and tune.base to nf4 to train "
                                       "adapters on the codes, or turn them into numbers with `fsdp import`.");
  }
  const models::DecoderConfig& model = choice.config;
  const std::string precision = "shard.precision = \"" + config.shard.precision + "\"";
  const BaseMisfit misfits[] = {
      {config.tune.method != "lora",
       "tune.method = \"" + config.tune.method + "\", which updates what codes cannot hold", "lora"},
      {!multiplies_decoded(config.shard.precision), precision, "bf16 or fp32"},
      {model.experts.count > 0, "model_type " + model.model_type + ", whose experts would stay as they are",
       "a model without experts"},
      {config.mesh.tp > 1, "mesh.tp = " + std::to_string(config.mesh.tp) + ", which cuts weights that are numbers",
       "1"},
      {config.mesh.pp > 1, "mesh.pp = " + std::to_string(config.mesh.pp), "1"},
      {config.train.projections == "fused", "train.projections = \"fused\", which joins weights that are numbers",
       "separate"},
      {config.train.cuda_graphs, "train.cuda_graphs, which cannot record how codes are decoded", "false"},
  };
  for (const BaseMisfit& each : misfits) {
    if (!each.is_asked) continue;
    throw Error(ErrorCode::kUsage, "[tune] tune.base: got " + config.tune.base + " with " + each.setting +
                                       ", expected " + each.instead + ". Set that, or tune.base to bf16.");
  }
}

}  // namespace fsdp::train
