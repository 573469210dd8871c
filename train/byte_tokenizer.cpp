#include "train/byte_tokenizer.h"

namespace fsdp::train {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

// Number of bytes of the sequence that starts with `lead`; 0 if none does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// May `next` follow after the lead byte (position 1) or later? Excludes overlong forms, surrogates and what lies above
// U+10FFFF (Unicode standard, table 3-7).
bool may_follow(unsigned char lead, size_t position, unsigned char next) {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (position == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return next >= low && next <= high;
}

}  // namespace

namespace byte_tokenizer {

std::string marker_json() {
  return "{\n  \"type\": \"bytes\",\n  \"vocab_size\": 259,\n  \"bos_token_id\": 256,\n  \"eos_token_id\": 257,\n"
         "  \"pad_token_id\": 258\n}\n";
}

}  // namespace byte_tokenizer

std::string Utf8Stream::push(unsigned char byte) {
  std::string ready;
  if (!pending_.empty() && !may_follow(static_cast<unsigned char>(pending_[0]), pending_.size(), byte)) {
    ready = kReplacement;
    pending_.clear();
  }
  pending_ += static_cast<char>(byte);
  const size_t length = sequence_length(static_cast<unsigned char>(pending_[0]));
  if (length == 0) {
    pending_.clear();
    return ready + kReplacement;
  }
  if (pending_.size() == length) {
    ready += pending_;
    pending_.clear();
  }
  return ready;
}

std::string Utf8Stream::finish() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return incomplete ? kReplacement : "";
}

std::string to_valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  for (const char c : bytes) {
    text += stream.push(static_cast<unsigned char>(c));
  }
  return text + stream.finish();
}

}  // namespace fsdp::train
