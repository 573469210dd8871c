#include "train/prepare/document_encoder.h"

#include <utility>

#include "fsdp/base/error.h"
#include "io/base/hash.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::train {

DocumentEncoder::DocumentEncoder(tokenizer::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

DocumentEncoder::DocumentEncoder(tokenizer::Tokenizer tokenizer, chat::Format format, ChatLines lines)
    : tokenizer_(std::move(tokenizer)), format_(format), lines_(lines) {}

std::optional<size_t> DocumentEncoder::encode(std::string_view document, std::vector<int32_t>& ids,
                                              std::vector<uint8_t>& is_answer) const {
  const auto append = [&](const chat::Rendered& rendered) {
    ids.insert(ids.end(), rendered.ids.begin(), rendered.ids.end());
    is_answer.insert(is_answer.end(), rendered.is_answer.begin(), rendered.is_answer.end());
  };
  if (format_ && lines_ == ChatLines::kPairs) {
    const chat::Preference pair = chat::parse_preference(document);
    const chat::Rendered chosen = chat::render(tokenizer_, *format_, pair.chosen);
    const chat::Rendered rejected = chat::render(tokenizer_, *format_, pair.rejected);
    append(chosen);
    append(rejected);
    return ids.size() - rejected.ids.size();
  }
  if (format_) {
    append(chat::render(tokenizer_, *format_, chat::parse_conversation(document)));
    return std::nullopt;
  }
  const size_t before = ids.size();
  try {
    tokenizer_.encode(document, tokenizer::SpecialTokens::kAdd, ids);
  } catch (...) {
    ids.resize(before);
    throw;
  }
  const auto end = tokenizer_.eos();
  if (end && (ids.size() == before || ids.back() != *end)) ids.push_back(*end);
  return std::nullopt;
}

std::string DocumentEncoder::description() const {
  return "tokenizer " + io::hash_text(tokenizer_.hash()) +
         (format_ ? ", chat " + std::string(chat::name_of(*format_)) : "") +
         (lines_ == ChatLines::kPairs ? ", pairs" : "");
}

DocumentEncoder make_encoder(const std::string& tokenizer, const std::string& chat, ChatLines lines) {
  if (chat.empty() && lines == ChatLines::kPairs) {
    throw Error(ErrorCode::kUsage,
                "[prepare] --pairs: got it without --chat, which says how chats are written. Add --chat auto.");
  }
  tokenizer::Tokenizer loaded =
      tokenizer == byte_tokenizer::kName ? tokenizer::Tokenizer::bytes() : tokenizer::Tokenizer::load(tokenizer);
  if (chat.empty()) return DocumentEncoder(std::move(loaded));
  const auto format = chat == "auto" ? chat::detect_format(loaded) : chat::find_format(chat);
  if (!format) {
    throw Error(ErrorCode::kUsage, "[prepare] --chat: got " + chat +
                                       ", expected auto, plain, chatml, llama2, llama3, mistral or smollm3.");
  }
  return DocumentEncoder(std::move(loaded), *format, lines);
}

}  // namespace fsdp::train
