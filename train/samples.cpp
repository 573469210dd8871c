#include "train/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/byte_tokenizer.h"
#include "train/format.h"
#include "train/generation.h"

namespace fsdp::train {
namespace {

std::vector<int64_t> encode(const std::string& text) {
  std::vector<int64_t> ids{byte_tokenizer::kBegin};
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// Up to the end of the document.
std::string decode(const std::vector<int64_t>& ids) {
  std::string bytes;
  for (const int64_t id : ids) {
    if (!byte_tokenizer::is_byte(id)) break;
    bytes += static_cast<char>(id);
  }
  return to_valid_utf8(bytes);
}

}  // namespace

std::string to_json(int64_t step, const Sample& sample) {
  nlohmann::ordered_json json;
  json["step"] = step;
  json["prompt"] = to_valid_utf8(sample.prompt);
  json["text"] = sample.text;
  return json.dump();
}

std::string printable(const std::string& utf8) {
  std::string out;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const auto next = static_cast<unsigned char>(i + 1 < utf8.size() ? utf8[i + 1] : 0);
    const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 .. U+009F
    if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7F || is_c1) {
      out += format_text("\\x%02x", is_c1 ? next : byte);
      i += is_c1 ? 1 : 0;
    } else {
      out += utf8[i];
    }
  }
  return out;
}

std::vector<std::string> split_prompts(const std::string& prompts) {
  std::vector<std::string> parts(1);
  for (const char c : prompts) {
    if (c == '|') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Sampler::Sampler(const SampleConfig& config, int64_t seed, const std::string& tokenizer)
    : config_(config), seed_(seed), prompts_(split_prompts(config.prompts)) {
  if (config.every_steps == 0 || tokenizer == byte_tokenizer::kName) return;
  throw Error(ErrorCode::kUsage, "[train] sample.every_steps: got a data set of the tokenizer '" + tokenizer +
                                     "', expected one of bytes. Set it to 0, or prepare the data with bytes.");
}

std::vector<Sample> Sampler::write(ShardedModel& model) const {
  const ForwardOnly scope(model.root);
  GenerationOptions options;
  options.max_tokens = config_.max_tokens;
  options.temperature = config_.temperature;
  options.seed = static_cast<uint64_t>(seed_);
  std::vector<Sample> samples;
  for (const std::string& prompt : prompts_) {
    std::vector<int64_t> ids;
    // No stop ids: ranks on unlike machines might stop at different places, and wait for each other.
    generate(model.decoder, encode(prompt), /*stop_ids=*/{}, options, [&](int64_t id) { ids.push_back(id); });
    samples.push_back({prompt, decode(ids)});
  }
  return samples;
}

}  // namespace fsdp::train
