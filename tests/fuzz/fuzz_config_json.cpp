// Hugging Face's config.json. Accepted means: sizes that can be computed with, and a file that reads back the same.
#include <cmath>
#include <string>

#include "models/config/decoder_config.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

// The message may be a table: its lines are printable.
bool are_lines_printable(std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (!is_printable(text.substr(0, end))) return false;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return true;
}

void check_config(const models::DecoderConfig& config) {
  FUZZ_REQUIRE(models::num_parameters(config) > 0);
  const double flops = models::flops_per_token(config, config.max_position_embeddings);
  FUZZ_REQUIRE(std::isfinite(flops) && flops > 0);
  FUZZ_REQUIRE(config.num_attention_heads % config.num_key_value_heads == 0);
  FUZZ_REQUIRE(config.head_dim > 0 && config.head_dim % 2 == 0);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) config.has_rope(layer);
  for (const std::string& warning : config.warnings) FUZZ_REQUIRE(is_printable(warning));
  const nlohmann::json written = models::to_hugging_face(config);
  const models::DecoderConfig again =
      models::parse_decoder_config(nlohmann::json::parse(written.dump()), "to_hugging_face");
  FUZZ_REQUIRE(models::to_hugging_face(again) == written);
  FUZZ_REQUIRE(again.warnings.empty());
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static fuzz::MemoryFile file;
  file.assign({reinterpret_cast<const char*>(data), size});
  models::DecoderConfig config;
  try {
    config = models::read_decoder_config(file.path());
  } catch (const io::Error& error) {
    fuzz::say_reason(error.what());
    FUZZ_REQUIRE(fuzz::are_lines_printable(error.what()));
    return 0;
  }
  fuzz::check_config(config);
  return 0;
}
