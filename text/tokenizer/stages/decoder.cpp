#include "text/tokenizer/stages/decoder.h"

#include <algorithm>

#include "text/tokenizer/stages/byte_level.h"

namespace fsdp::tokenizer {
namespace {

using StageKind = DecoderStage::Kind;

bool joins(StageKind kind) {
  return kind == StageKind::kBytes || kind == StageKind::kByteLevel || kind == StageKind::kFuse;
}

// Can the stage work on one long text part by part?
bool takes_parts(StageKind kind) {
  return kind == StageKind::kFuse || kind == StageKind::kStrip || kind == StageKind::kMetaspace;
}

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string result;
  for (;;) {
    const size_t at = text.find(pattern);
    result.append(text.substr(0, at));
    if (at == std::string_view::npos) return result;
    result.append(content);
    text.remove_prefix(at + pattern.size());
  }
}

// The byte that "<0xNN>" stands for.
std::optional<char> fallback_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  // Rust's from_str_radix takes a sign.
  const size_t first = text[3] == '+' ? 4 : 3;
  for (const char c : text.substr(first, 5 - first)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

// kStrip on a whole text.
std::string_view stripped(std::string_view text, const DecoderStage& stage) {
  for (size_t i = 0; i < stage.start && text.starts_with(stage.content); ++i) text.remove_prefix(stage.content.size());
  for (size_t i = 0; i < stage.stop && text.ends_with(stage.content); ++i) text.remove_suffix(stage.content.size());
  return text;
}

}  // namespace

TextStream::TextStream(const Decoder& decoder) : decoder_(&decoder), states_(decoder.stages.size()) {
  bool fused = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    states_[i].is_fused = fused;
    fused = fused || joins(decoder.stages[i].kind);
  }
}

void TextStream::push(std::string_view token, std::string& out) { run(0, token, out); }

void TextStream::run(size_t stage, std::string_view text, std::string& out) {
  if (stage == states_.size()) {
    if (decoder_->joining == Decoder::Joining::kSpaces && !is_first_output_) out += ' ';
    is_first_output_ = false;
    out.append(text);
    return;
  }
  const DecoderStage& what = decoder_->stages[stage];
  State& state = states_[stage];
  if (state.is_fused && !takes_parts(what.kind)) {
    state.held.append(text);
    return;
  }
  switch (what.kind) {
    case StageKind::kBytes: {
      std::string ready;
      state.repair.push(text, ready);
      if (!ready.empty()) run(stage + 1, ready, out);
      break;
    }
    case StageKind::kByteLevel:
      run_byte_level(stage, text, out);
      break;
    case StageKind::kReplace:
      run(stage + 1, replaced(text, what.pattern, what.content), out);
      break;
    case StageKind::kByteFallback:
      run_byte_fallback(stage, text, out);
      break;
    case StageKind::kFuse:
      run(stage + 1, text, out);
      break;
    case StageKind::kStrip:
      if (state.is_fused) {
        strip_part(stage, text, out);
      } else {
        run(stage + 1, stripped(text, what), out);
      }
      break;
    case StageKind::kMetaspace: {
      const bool drops = what.drop_first && (state.is_first || state.is_fused);
      state.is_first = false;
      run(stage + 1, replaced(text, what.pattern, drops ? "" : " "), out);
      break;
    }
  }
}

void TextStream::run_byte_level(size_t stage, std::string_view text, std::string& out) {
  const std::optional<std::string> bytes = byte_level::to_bytes(text);
  std::string ready;
  states_[stage].repair.push(bytes ? *bytes : text, ready);
  if (!ready.empty()) run(stage + 1, ready, out);
}

void TextStream::run_byte_fallback(size_t stage, std::string_view text, std::string& out) {
  if (const std::optional<char> byte = fallback_byte(text)) {
    states_[stage].held += *byte;
    return;
  }
  release_bytes(stage, out);
  run(stage + 1, text, out);
}

// A run of byte tokens has ended: it is text as a whole, or each byte is replaced.
void TextStream::release_bytes(size_t stage, std::string& out) {
  std::string bytes;
  bytes.swap(states_[stage].held);
  if (bytes.empty()) return;
  if (!find_invalid_utf8(bytes)) {
    run(stage + 1, bytes, out);
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) run(stage + 1, "\xEF\xBF\xBD", out);
}

// Part of a long text: cuts its start off, and holds back what may be its end.
void TextStream::strip_part(size_t stage, std::string_view text, std::string& out) {
  const DecoderStage& what = decoder_->stages[stage];
  State& state = states_[stage];
  while (state.is_first && !text.empty()) {
    state.is_first = state.num_cut < what.start && text.starts_with(what.content);
    if (!state.is_first) break;
    ++state.num_cut;
    text.remove_prefix(what.content.size());
  }
  state.held.append(text);
  std::string_view kept = state.held;
  for (size_t i = 0; i < what.stop && kept.ends_with(what.content); ++i) kept.remove_suffix(what.content.size());
  const std::string ready(kept);
  state.held.erase(0, ready.size());
  if (!ready.empty()) run(stage + 1, ready, out);
}

void TextStream::finish(std::string& out) {
  for (size_t stage = 0; stage < states_.size(); ++stage) finish_stage(stage, out);
  const Decoder& decoder = *decoder_;
  *this = TextStream(decoder);
}

void TextStream::finish_stage(size_t stage, std::string& out) {
  const DecoderStage& what = decoder_->stages[stage];
  State& state = states_[stage];
  if (what.kind == StageKind::kStrip) return;  // what is held is exactly what is cut
  if (state.is_fused && !takes_parts(what.kind)) {
    std::string whole;
    whole.swap(state.held);
    state.is_fused = false;
    run(stage, whole, out);
  }
  if (what.kind == StageKind::kByteFallback) release_bytes(stage, out);
  std::string rest;
  state.repair.finish(rest);
  if (!rest.empty()) run(stage + 1, rest, out);
}

}  // namespace fsdp::tokenizer
