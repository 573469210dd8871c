#include "text/tokenizer/json/stage_readers.h"

#include <algorithm>

#include "io/base/error.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

constexpr size_t kMaxStages = 32;
constexpr double kMaxGrowth = 64;  // of a text by all replacements together

[[noreturn]] void refuse_type(const JsonNode& node, const std::string& supported) {
  const std::string type = node.at("type").text();
  node.fail("the type " + io::in_quotes(type), "one of " + supported);
}

// A stage by itself, or the stages of a Sequence, whose list is called `list_key`; Sequences inside it are opened too.
void collect(const JsonNode& node, std::string_view list_key, std::vector<JsonNode>& stages) {
  if (node.at("type").text() != "Sequence") {
    stages.push_back(node);
  } else {
    for (const JsonNode& inner : node.at(list_key).items()) collect(inner, list_key, stages);
  }
  if (stages.size() > kMaxStages) node.fail("more than " + std::to_string(kMaxStages) + " steps", "fewer");
}

// The stages below `key` of the file; none if it is absent.
std::vector<JsonNode> stages_of(const JsonNode& root, std::string_view key, std::string_view list_key) {
  std::vector<JsonNode> stages;
  if (const auto node = root.find(key)) collect(*node, list_key, stages);
  return stages;
}

// Refuses replacements that make a long text out of a short one.
class GrowthLimit {
 public:
  void add(const JsonNode& node, size_t pattern_bytes, size_t content_bytes) {
    growth_ *=
        std::max(1.0, static_cast<double>(content_bytes) / static_cast<double>(std::max<size_t>(pattern_bytes, 1)));
    if (growth_ > kMaxGrowth) node.fail("replacements that make text more than 64 times as long", "shorter ones");
  }

 private:
  double growth_ = 1;
};

std::string one_character(const JsonNode& node) {
  std::string text = node.text();
  if (text.empty() || length_of(text[0]) != text.size()) node.fail("the text " + io::in_quotes(text), "one character");
  return text;
}

// "pattern": {"String": ...} or {"Regex": ...}. Sets one of the two.
void read_pattern(const JsonNode& node, std::string& text, std::shared_ptr<const Regex>& regex) {
  const JsonNode pattern = node.at("pattern");
  if (const auto plain = pattern.find("String")) {
    text = plain->text();
    if (text.empty()) plain->fail("an empty text", "at least one character");
    return;
  }
  const JsonNode written = pattern.at("Regex");
  regex = std::make_shared<const Regex>(written.text(), written.place());
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string name = node.at("behavior").text();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.at("behavior").fail(io::in_quotes(name), "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

SplitStep read_split(const JsonNode& node) {
  SplitStep step{.kind = SplitStep::Kind::kRegex, .regex = nullptr, .text = {}};
  step.behavior = read_behavior(node);
  step.inverted = node.flag_or("invert", false);
  const JsonNode pattern = node.at("pattern");
  if (const auto written = pattern.find("Regex")) {
    if (const auto known = find_word_pattern(written->text())) {
      step.kind = SplitStep::Kind::kWordPattern;
      step.pattern = *known;
      return step;
    }
  }
  read_pattern(node, step.text, step.regex);
  if (step.regex == nullptr) step.kind = SplitStep::Kind::kText;
  return step;
}

SplitStep read_metaspace(const JsonNode& node) {
  SplitStep step{.kind = SplitStep::Kind::kMetaspace, .regex = nullptr, .text = one_character(node.at("replacement"))};
  const auto scheme = node.find("prepend_scheme");
  const std::string name = scheme ? scheme->text() : "always";
  if (name != "always" && name != "first" && name != "never")
    scheme->fail(io::in_quotes(name), "always, first or never");
  step.prepend = name == "always"  ? SplitStep::Prepend::kAlways
                 : name == "first" ? SplitStep::Prepend::kFirst
                                   : SplitStep::Prepend::kNever;
  if (!node.flag_or("add_prefix_space", true)) {
    if (scheme && name != "never") scheme->fail(io::in_quotes(name), "never, since add_prefix_space is false");
    step.prepend = SplitStep::Prepend::kNever;
  }
  step.splits = node.flag_or("split", true);
  return step;
}

void add_byte_level(const JsonNode& node, std::vector<SplitStep>& steps) {
  if (node.at("add_prefix_space").flag()) {
    steps.push_back({.kind = SplitStep::Kind::kPrefixSpace, .regex = nullptr, .text = {}});
  }
  if (node.flag_or("use_regex", true)) {
    steps.push_back(
        {.kind = SplitStep::Kind::kWordPattern, .pattern = WordPattern::kGpt2, .regex = nullptr, .text = {}});
  }
}

DecoderStage read_decoder_stage(const JsonNode& node, GrowthLimit& limit) {
  const std::string type = node.at("type").text();
  DecoderStage stage{.kind = DecoderStage::Kind::kFuse, .pattern = {}, .content = {}};
  if (type == "ByteLevel") {
    stage.kind = DecoderStage::Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    stage.kind = DecoderStage::Kind::kByteFallback;
  } else if (type == "Replace") {
    stage.kind = DecoderStage::Kind::kReplace;
    const JsonNode pattern = node.at("pattern");
    stage.pattern = pattern.at("String").text();
    if (stage.pattern.empty()) pattern.fail("an empty text", "at least one character");
    stage.content = node.at("content").text();
    limit.add(node, stage.pattern.size(), stage.content.size());
  } else if (type == "Strip") {
    stage.kind = DecoderStage::Kind::kStrip;
    stage.content = one_character(node.at("content"));
    stage.start = static_cast<size_t>(node.at("start").integer());
    stage.stop = static_cast<size_t>(node.at("stop").integer());
  } else if (type == "Metaspace") {
    stage.kind = DecoderStage::Kind::kMetaspace;
    const SplitStep step = read_metaspace(node);
    stage.pattern = step.text;
    stage.drop_first = step.prepend != SplitStep::Prepend::kNever;
  } else if (type != "Fuse") {
    refuse_type(node, "ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace and Sequence");
  }
  return stage;
}

constexpr size_t kMaxTemplateIds = 1000;

// What TemplateProcessing puts around one text.
Template read_template(const JsonNode& node) {
  Template result;
  bool has_text = false;
  for (const JsonNode& piece : node.at("single").items()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (has_text || sequence->at("id").text() != "A") piece.fail("a second text", "the text A once");
      has_text = true;
      continue;
    }
    const JsonNode token = piece.at("SpecialToken").at("id");
    for (const JsonNode& id : node.at("special_tokens").at(token.text()).at("ids").items()) {
      (has_text ? result.suffix : result.prefix).push_back(static_cast<int32_t>(id.integer()));
      // Pieces may name a long list of ids again and again.
      if (result.prefix.size() + result.suffix.size() > kMaxTemplateIds)
        piece.fail("more than 1000 ids around a text", "at most 1000 (limit)");
    }
  }
  if (!has_text) node.at("single").fail("a template without a text", "the text A once");
  return result;
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const JsonNode& root) {
  std::vector<NormalizerStep> steps;
  GrowthLimit limit;
  for (const JsonNode& node : stages_of(root, "normalizer", "normalizers")) {
    const std::string type = node.at("type").text();
    NormalizerStep step{.kind = NormalizerStep::Kind::kNfc, .pattern = {}, .regex = nullptr, .content = {}};
    if (type == "Prepend") {
      step.kind = NormalizerStep::Kind::kPrepend;
      step.content = node.at("prepend").text();
      limit.add(node, 1, 1 + step.content.size());
    } else if (type == "Replace") {
      step.kind = NormalizerStep::Kind::kReplace;
      read_pattern(node, step.pattern, step.regex);
      step.content = node.at("content").text();
      limit.add(node, step.pattern.size(), step.content.size());
    } else if (type != "NFC") {
      refuse_type(node, "NFC, Prepend, Replace and Sequence");
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

PreTokenizerSteps read_pre_tokenizer(const JsonNode& root) {
  PreTokenizerSteps result;
  for (const JsonNode& node : stages_of(root, "pre_tokenizer", "pretokenizers")) {
    if (result.alphabet == Bpe::Alphabet::kBytes) node.fail("a step after ByteLevel", "ByteLevel to be the last one");
    const std::string type = node.at("type").text();
    if (type == "ByteLevel") {
      add_byte_level(node, result.steps);
      result.alphabet = Bpe::Alphabet::kBytes;
    } else if (type == "Split") {
      result.steps.push_back(read_split(node));
    } else if (type == "Digits") {
      SplitStep step{.kind = SplitStep::Kind::kDigit, .regex = nullptr, .text = {}};
      step.behavior = node.at("individual_digits").flag() ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
      result.steps.push_back(std::move(step));
    } else if (type == "Metaspace") {
      result.steps.push_back(read_metaspace(node));
    } else {
      refuse_type(node, "ByteLevel, Split, Digits, Metaspace and Sequence");
    }
  }
  return result;
}

Decoder read_decoder(const JsonNode& root) {
  Decoder decoder;
  GrowthLimit limit;
  for (const JsonNode& node : stages_of(root, "decoder", "decoders")) {
    decoder.stages.push_back(read_decoder_stage(node, limit));
  }
  if (!root.find("decoder")) decoder.joining = Decoder::Joining::kSpaces;
  return decoder;
}

Template read_post_processor(const JsonNode& root) {
  Template result;
  for (const JsonNode& node : stages_of(root, "post_processor", "processors")) {
    const std::string type = node.at("type").text();
    if (type == "ByteLevel") continue;  // changes offsets only
    if (type != "TemplateProcessing") refuse_type(node, "ByteLevel, TemplateProcessing and Sequence");
    const Template outer = read_template(node);
    result.prefix.insert(result.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    result.suffix.insert(result.suffix.end(), outer.suffix.begin(), outer.suffix.end());
  }
  return result;
}

}  // namespace fsdp::tokenizer
