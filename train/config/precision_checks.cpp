#include "train/config/precision_checks.h"

#include <string>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

struct Misfit {
  bool is_asked;
  std::string setting, instead;
};

void refuse_misfits(const std::string& precision, const std::vector<Misfit>& misfits) {
  for (const Misfit& each : misfits) {
    if (!each.is_asked) continue;
    throw Error(ErrorCode::kUsage, "[config] shard.precision: got " + precision + " with " + each.setting +
                                       ", expected " + each.instead + ". Set that, or another precision.");
  }
}

}  // namespace

void check_precision(const Config& config) {
  const std::string& precision = config.shard.precision;
  const bool has_digits = precision == "o3" && config.optimizer.name == "adamw_8bit";
  refuse_misfits(precision, {{config.optimizer.weight_rounding != "nearest" && !has_digits,
                              "optimizer.weight_rounding = \"" + config.optimizer.weight_rounding +
                                  "\" and optimizer.name = \"" + config.optimizer.name + "\"",
                              "nearest, or o3 with adamw_8bit, whose weights have 24 bits"}});
  if (precision != "o1" && precision != "o3") return;
  refuse_misfits(
      precision,
      {{config.shard.device != "cpu", "shard.device = \"" + config.shard.device + "\"", "cpu in this version"},
       {config.mesh.tp > 1, "mesh.tp = " + std::to_string(config.mesh.tp), "1, or fp32 or bf16 there"}});
  if (precision == "o1") return;
  refuse_misfits(
      precision,
      {{config.optimizer.name != "adamw" && config.optimizer.name != "adamw_8bit",
        "optimizer.name = \"" + config.optimizer.name + "\", which loses what bf16 weights round away",
        "adamw or adamw_8bit, which keep it"},
       {config.train.ema > 0, "train.ema, whose averages change places with weights", "0, or bf16 there"},
       {config.tune.method == "lora", "tune.method = \"lora\", whose adapters are fp32", "bf16 there"},
       {config.train.world_invariant, "train.world_invariant, whose sums are fp32", "false, or bf16 there"}});
}

bool keeps_narrow_weights(const ShardConfig& config) { return config.precision == "o3"; }

}  // namespace fsdp::train
