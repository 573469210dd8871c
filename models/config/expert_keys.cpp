#include "models/config/expert_keys.h"

#include <algorithm>
#include <string>

#include "io/base/error.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

constexpr int64_t kMostExperts = 4096;
constexpr int64_t kWidestExpert = int64_t{1} << 22;
constexpr int64_t kWidestLayer = int64_t{1} << 25;  // with the other limits: num_parameters() stays below 2^63

// A dense family: the same keys may be there, but null.
void refuse_experts(ConfigReader& reader) {
  for (const char* key : {"num_experts", "num_local_experts"})
    if (reader.find(key) != nullptr) reader.object_to(key, "null, for this model_type");
}

// Transformers 4 and published files say num_experts of Qwen3-MoE, transformers 5 num_local_experts.
int64_t read_count(ConfigReader& reader, int64_t fallback) {
  const char* key = reader.find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  return reader.integer(key, 1, kMostExperts, fallback);
}

bool is_layer_number(const json& value, int64_t layers) {
  return value.is_number_integer() && value >= 0 && value < layers;
}

std::vector<bool> read_dense_layers(ConfigReader& reader, int64_t layers) {
  std::vector<bool> dense(static_cast<size_t>(layers), false);
  const int64_t step = reader.integer("decoder_sparse_step", 1, INT32_MAX, 1);
  for (int64_t layer = 0; layer < layers; ++layer) dense[static_cast<size_t>(layer)] = (layer + 1) % step != 0;
  const json* list = reader.find("mlp_only_layers");
  const bool fits = list == nullptr || (list->is_array() && std::all_of(list->begin(), list->end(), [&](const auto& n) {
                                          return is_layer_number(n, layers);
                                        }));
  if (!fits) {
    reader.object_to("mlp_only_layers", "a list of layers, from 0 to " + std::to_string(layers - 1));
  } else if (list != nullptr) {
    for (const json& layer : *list) dense[layer.get<size_t>()] = true;
  }
  const auto count = std::count(dense.begin(), dense.end(), true);
  if (count == layers) reader.object_to("mlp_only_layers", "at least one layer with experts");
  return count == 0 ? std::vector<bool>() : dense;
}

}  // namespace

void read_experts(ConfigReader& reader, const Family& family, DecoderConfig& config) {
  if (family.experts == ExpertKeys::kNone) return refuse_experts(reader);
  ExpertsConfig& experts = config.experts;
  const bool is_mixtral = family.experts == ExpertKeys::kMixtral;
  experts.count = read_count(reader, is_mixtral ? 8 : 128);
  experts.per_token =
      reader.integer("num_experts_per_tok", 1, experts.count, std::min<int64_t>(experts.count, is_mixtral ? 2 : 8));
  experts.balance_loss = reader.number("router_aux_loss_coef", 0, 1e6, 0.001);
  experts.inner_size =
      is_mixtral ? config.intermediate_size : reader.integer("moe_intermediate_size", 1, kWidestExpert, 768);
  if (experts.count * experts.inner_size > kWidestLayer)
    reader.object_to(is_mixtral ? "num_local_experts" : "num_experts", "experts of fewer inner features together");
  if (is_mixtral) return;
  experts.normalise = reader.boolean("norm_topk_prob", false);
  experts.dense_layers = read_dense_layers(reader, config.num_hidden_layers);
}

void add_experts(const Family& family, const DecoderConfig& config, json& result) {
  if (family.experts == ExpertKeys::kNone) return;
  const ExpertsConfig& experts = config.experts;
  result["num_experts_per_tok"] = experts.per_token;
  result["router_aux_loss_coef"] = experts.balance_loss;
  result["output_router_logits"] = false;
  if (family.experts == ExpertKeys::kMixtral) {
    result["num_local_experts"] = experts.count;
    result["router_jitter_noise"] = 0.0;
    return;
  }
  result["num_experts"] = experts.count;
  result["moe_intermediate_size"] = experts.inner_size;
  result["norm_topk_prob"] = experts.normalise;
  result["decoder_sparse_step"] = 1;
  result["mlp_only_layers"] = json::array();
  for (size_t layer = 0; layer < experts.dense_layers.size(); ++layer)
    if (experts.dense_layers[layer]) result["mlp_only_layers"].push_back(layer);
}

void check_experts(const Family& family, const DecoderConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const auto error = [&](const std::string& detail) {
    return io::Error(io::ErrorKind::kUsage, "[to_hugging_face] experts: " + detail);
  };
  const bool has_experts = experts.count > 0;
  if (has_experts != (family.experts != ExpertKeys::kNone))
    throw error("got " + std::to_string(experts.count) + ", expected " + (has_experts ? "none" : "some") +
                " for model_type " + family.model_type + ". Choose " +
                (has_experts ? "mixtral or qwen3_moe." : "another family, or give their number."));
  if (!has_experts) return;
  if (experts.shared_inner_size > 0 || experts.groups != 1 || experts.scale != 1)
    throw error("got shared ones, groups or a factor, expected none for model_type " + family.model_type + ".");
  const bool is_mixtral = family.experts == ExpertKeys::kMixtral;
  if (is_mixtral &&
      (experts.inner_size != config.intermediate_size || !experts.normalise || !experts.dense_layers.empty()))
    throw error(
        "got those of another family, expected in all layers, of intermediate_size, with weights that add up "
        "to 1 for model_type mixtral. Choose qwen3_moe.");
}

}  // namespace fsdp::models
