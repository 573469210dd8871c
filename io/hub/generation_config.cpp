#include "io/hub/generation_config.h"

#include <string>

#include "io/base/error.h"
#include "io/base/json.h"

namespace fsdp::io {

nlohmann::json generation_config(const nlohmann::json& config) {
  nlohmann::json result = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = config.find(key);
    if (found != config.end() && !found->is_null()) result[key] = *found;
  }
  return result;
}

std::vector<int64_t> end_tokens_of(const std::filesystem::path& folder, int64_t vocab_size) {
  const std::filesystem::path path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  JsonLimits limits;
  limits.kind = ErrorKind::kModel;
  const nlohmann::json config = read_json_file(path, limits);
  if (!config.is_object())
    throw Error(ErrorKind::kModel, path.string() + ": got no JSON object. Repair it or remove it.");
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return {};
  std::vector<int64_t> ids;
  for (const nlohmann::json& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      throw Error(ErrorKind::kModel, path.string() + ": eos_token_id: got " + id.dump() +
                                         ", expected token ids below " + std::to_string(vocab_size) +
                                         ". Repair the file or remove it.");
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace fsdp::io
