#include "train/generate/samples.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <span>

#include "text/unicode/utf8.h"
#include "train/axes/decoder_pipeline.h"
#include "train/base/metrics.h"
#include "train/base/terminal_text.h"
#include "train/generate/sampling.h"

namespace fsdp::train {
namespace {

std::vector<int32_t> encode(const tokenizer::Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<int32_t> ids = tokenizer.encode(prompt, tokenizer::SpecialTokens::kAdd);
  if (ids.empty()) ids.push_back(tokenizer.bos().value_or(tokenizer.eos().value_or(0)));
  return ids;
}

// Undefined on the ranks of a pipeline's earlier stages.
at::Tensor logits_of(ShardedModel& model, const at::Tensor& ids_BT) {
  if (!model.pipeline) return model.decoder->forward(ids_BT);
  return model.pipeline->forward({ids_BT, {}},
                                 [&](const at::Tensor& hidden_BTE) { return model.decoder->logits_of(hidden_BTE); });
}

// Logits [V] of the token after the last, likewise undefined. Behind it come as many as the ranks that cut layers and
// sequences need, seen by none.
at::Tensor last_logits(ShardedModel& model, const std::vector<int32_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size()), unit = model.place.token_unit();
  at::Tensor ids_1T = at::zeros({1, (length + unit - 1) / unit * unit}, at::kLong);
  ids_1T.narrow(1, 0, length).copy_(at::tensor(ids, at::kLong));
  const RankPlace& place = model.place;
  const at::Tensor own = parallel::zigzag_part(ids_1T, 1, place.context_index, place.num_context);
  const at::Tensor logits_1TV = logits_of(model, own.to(model.decoder->device()));
  if (!logits_1TV.defined()) return {};
  return (model.axes ? model.axes->whole_sequences(logits_1TV, 1) : logits_1TV)[0][length - 1];
}

}  // namespace

std::string to_json(int64_t step, const Sample& sample) {
  nlohmann::ordered_json json;
  json["schema"] = kLogSchema;
  json["step"] = step;
  json["prompt"] = tokenizer::to_valid_utf8(sample.prompt);
  json["text"] = sample.text;
  return json.dump();
}

std::string printable(const std::string& utf8) {
  std::string out;
  for (const char c : for_terminal(utf8)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\x09";
    } else {
      out += c;
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

SampleWriter::SampleWriter(const SampleConfig& config, int64_t seed, std::optional<tokenizer::Tokenizer> tokenizer)
    : config_(config), seed_(seed), tokenizer_(std::move(tokenizer)) {
  if (config.every_steps == 0) return;
  if (!tokenizer_) {
    throw Error(ErrorCode::kUsage,
                "[train] sample.every_steps: got a data set without its tokenizer, expected one with a copy of it. "
                "Set it to 0, or prepare the data anew.");
  }
  for (const std::string& text : split_prompts(config.prompts)) prompts_.push_back({text, encode(*tokenizer_, text)});
}

// Up to the end of the document. The prompt goes through the decoder too, because what it gives depends on what was
// before: the first space of a text may be none of its own.
std::string SampleWriter::decode(const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids) const {
  tokenizer::StreamDecoder decoder(*tokenizer_, tokenizer::SkipSpecial::kYes);
  for (const int32_t id : prompt) decoder.push(id);
  std::string text;
  for (const int32_t id : ids) {
    if (tokenizer_->is_special(id)) break;
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

// Always max_tokens: ranks on unlike machines might meet an end at different places, and wait for each other. Without
// a cache, whose memory the training would have to leave room for; samples are short and rare.
std::vector<int32_t> SampleWriter::continue_ids(ShardedModel& model, std::vector<int32_t> ids) const {
  SamplingOptions options;
  options.temperature = config_.temperature;
  options.seed = static_cast<uint64_t>(seed_);
  Sampler sampler(options);
  std::vector<int32_t> added;
  for (int64_t count = 0; count < config_.max_tokens; ++count) {
    const at::Tensor logits_V = last_logits(model, ids);
    int64_t id = 0;
    if (logits_V.defined()) {
      const at::Tensor last_V = logits_V.to(at::kCPU).to(at::kFloat).contiguous();
      id = sampler.draw({last_V.const_data_ptr<float>(), static_cast<size_t>(last_V.numel())});
    }
    if (model.pipeline) id = model.pipeline->from_last(id);
    added.push_back(static_cast<int32_t>(id));
    ids.push_back(added.back());
  }
  return added;
}

std::vector<Sample> SampleWriter::write(ShardedModel& model) const {
  const ForwardOnly scope(model.root);
  std::vector<Sample> samples;
  for (const Prompt& prompt : prompts_) {
    samples.push_back({prompt.text, decode(prompt.ids, continue_ids(model, prompt.ids))});
  }
  return samples;
}

}  // namespace fsdp::train
