#include "train/axes/axis_checks.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::train {
namespace {

using Counts = std::vector<std::pair<std::string, int64_t>>;

[[noreturn]] void refuse_axis(const std::string& message) { throw Error(ErrorCode::kUsage, "[mesh] " + message); }

// What a layer is cut into.
Counts counts_of(const Config& config, const models::DecoderConfig& model) {
  return {{"attention heads (model.heads)", model.num_attention_heads},
          {"heads of keys and values (model.kv_heads)", model.num_key_value_heads},
          {"inner features of the MLP (model.ffn_size)", model.intermediate_size},
          {"entries of the vocabulary (model.vocab_size)", model.vocab_size},
          {"tokens of a sequence (data.sequence_length)", config.data.sequence_length}};
}

std::string divisors_of_all(const Counts& counts) {
  int64_t common = 0;
  for (const auto& [what, count] : counts) common = std::gcd(common, count);
  std::string text;
  for (int64_t divisor = 1; divisor <= common; ++divisor) {
    if (common % divisor == 0) text += (text.empty() ? "" : ", ") + std::to_string(divisor);
  }
  return text;
}

void check_counts(const std::string& key, int64_t parts, const Counts& counts) {
  for (const auto& [what, count] : counts) {
    if (count % parts == 0) continue;
    const int64_t below = count / parts * parts;
    refuse_axis(key + ": got " + std::to_string(parts) + " with " + std::to_string(count) + " " + what +
                ", expected a multiple of it: " + (below > 0 ? std::to_string(below) + " or " : "") +
                std::to_string(below + parts) + ". With this model and these sequences " + key + " may be " +
                divisors_of_all(counts) + ".");
  }
}

// Others of the settings that do not go with axes, and what would.
void check_settings(const std::string& key, const Config& config) {
  const struct {
    bool is_asked;
    std::string setting, instead;
  } refused[] = {
      {config.optimizer.name == "muon", "optimizer.name = \"muon\", which wants whole matrices", "adamw, lion or sgd"},
      {config.optimizer.name == "adamw_8bit", "optimizer.name = \"adamw_8bit\", which wants whole blocks of numbers",
       "adamw, lion or sgd"},
      {config.shard.precision == "fp8", "shard.precision = \"fp8\", whose scales are those of whole weights",
       "fp32, bf16 or fp16"},
      {config.shard.device != "cpu", "shard.device = \"" + config.shard.device + "\"", "cpu in this version"},
      {config.train.recompute == "elementwise" || config.train.recompute == "gate_up",
       "train.recompute = \"" + config.train.recompute + "\", which computes a part of a layer again", "none or block"},
      {config.tune.method == "lora", "tune.method = \"lora\"", "full"},
      {!config.output.hardware.empty(), "output.hardware, whose prediction does not know this axis", "none: \"\""}};
  for (const auto& each : refused) {
    if (!each.is_asked) continue;
    refuse_axis(key + ": got it with " + each.setting + ", expected " + each.instead + ". Set that, or " + key +
                " to 1.");
  }
}

}  // namespace

void check_axes(const Config& config, const models::DecoderConfig& model) {
  if (config.mesh.tp == 1) return;
  check_settings("mesh.tp", config);
  check_counts("mesh.tp", config.mesh.tp, counts_of(config, model));
}

}  // namespace fsdp::train
