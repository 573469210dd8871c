#include "train/model/fp8_layers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/base/fault_point.h"
#include "fsdp/fsdp.h"
#include "kernels/products/fp8_linear.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/fp8_weights.h"
#include "models/lora.h"
#include "train/model/frozen.h"

namespace fsdp::train {
namespace {

[[noreturn]] void refuse_fp8(const std::string& option, const std::string& problem) {
  throw Error(ErrorCode::kUsage, "[config] " + option + ": " + problem);
}

// What shard.fp8_keep may say of a map in that block.
std::vector<std::string> words_for(const std::string& map, size_t block, size_t num_blocks) {
  std::vector<std::string> words = {map.substr(map.rfind('.') + 1)};
  if (block == 0) words.emplace_back("first");
  if (block + 1 == num_blocks) words.emplace_back("last");
  return words;
}

bool keeps(const std::vector<std::string>& kept, const std::string& map, size_t block, size_t num_blocks) {
  const std::vector<std::string> words = words_for(map, block, num_blocks);
  return std::find_first_of(kept.begin(), kept.end(), words.begin(), words.end()) != kept.end();
}

// Of all blocks, those of other stages too.
bool keeps_all(const std::vector<std::string>& kept, const std::vector<std::string>& maps, size_t num_blocks) {
  for (size_t block = 0; block < num_blocks; ++block) {
    const auto is_kept = [&](const std::string& map) { return keeps(kept, map, block, num_blocks); };
    if (!std::all_of(maps.begin(), maps.end(), is_kept)) return false;
  }
  return true;
}

void check_words(const std::vector<std::string>& words, const models::Decoder& decoder) {
  std::vector<std::string> known = models::linear_names(decoder);
  known.insert(known.end(), {"first", "last"});
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    std::string list;
    for (const std::string& each : known) list += (list.empty() ? "" : ", ") + each;
    refuse_fp8("shard.fp8_keep", "got " + word + ", expected some of " + list + ", or none: \"\".");
  }
}

void check_weight(const std::string& map, const at::Tensor& weight, Fp8Recipe recipe) {
  const int64_t granule = kernels::weight_granule(recipe);
  if (weight.size(0) % granule == 0 && weight.size(1) % granule == 0) return;
  refuse_fp8("shard.fp8_recipe",
             std::string("got ") + kernels::name(recipe) + ", which needs multiples of " + std::to_string(granule) +
                 ", and " + map + " of " + std::to_string(weight.size(0)) + " x " + std::to_string(weight.size(1)) +
                 ": expected another recipe, or " + map.substr(map.rfind('.') + 1) + " in shard.fp8_keep.");
}

void check_device(Fp8Recipe recipe, const ShardConfig& config) {
  if (config.device == "cpu") return;
  const std::string device = "with shard.device = \"" + config.device + "\"";
  if (!kernels::has_scaled_product(recipe))
    refuse_fp8("shard.fp8_recipe", std::string("got ") + kernels::name(recipe) + " " + device +
                                       ", expected tensorwise or rowwise there: the others are multiplied on the CPU "
                                       "only in this version.");
  if (config.fp8_gather)
    refuse_fp8("shard.fp8_gather", "got it " + device + ", expected it on the CPU only: leave it out.");
}

}  // namespace

void use_fp8(const models::Decoder& decoder, const ShardConfig& config) {
  const ShardConfig usual;
  if (config.precision != "fp8") {
    if (config.fp8_recipe != usual.fp8_recipe || config.fp8_keep != usual.fp8_keep || config.fp8_gather)
      refuse_fp8("shard.fp8_recipe, shard.fp8_keep and shard.fp8_gather",
                 "got them with shard.precision = \"" + config.precision +
                     "\", expected \"fp8\". Set that, or leave them out.");
    return;
  }
  const Fp8Recipe recipe = parse_fp8_recipe(config.fp8_recipe);
  check_device(recipe, config);
  if (config.fp8_gather && !kernels::has_one_weight(recipe))
    refuse_fp8("shard.fp8_gather", std::string("got it with shard.fp8_recipe = \"") + kernels::name(recipe) +
                                       "\", whose forward and backward round a weight along different dimensions, "
                                       "expected tensorwise or blockwise. Set one of them, or leave it out.");
  const std::vector<std::string> kept = split_list(config.fp8_keep);
  check_words(kept, decoder);
  // What the limits of a curve are worth: benchmarks/precision.py.
  constexpr int kBrokenBy = 20;
  if (fault_point("value.fp8_scale").inject) kernels::break_fp8_scales(kBrokenBy);
  const size_t num_blocks = decoder->layers()->size();
  if (keeps_all(kept, models::linear_names(decoder), num_blocks))
    refuse_fp8("shard.fp8_keep", "got " + config.fp8_keep + ", which keeps every linear map of the " +
                                     std::to_string(num_blocks) + " blocks in bf16, expected fewer, such as \"\".");
  for (const auto& [name, map] : models::linears_in_blocks(decoder)) {
    const size_t block = std::stoul(name.substr(std::string("model.layers.").size()));
    if (keeps(kept, name, block, num_blocks)) continue;
    check_weight(name, map->weight, recipe);
    kernels::set_fp8(map->weight, recipe);
  }
}

}  // namespace fsdp::train
