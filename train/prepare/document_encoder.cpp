#include "train/prepare/document_encoder.h"

#include <utility>

#include "fsdp/base/error.h"
#include "io/base/hash.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::train {

DocumentEncoder::DocumentEncoder(tokenizer::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

DocumentEncoder::DocumentEncoder(tokenizer::Tokenizer tokenizer, chat::Format format)
    : tokenizer_(std::move(tokenizer)), format_(format) {}

void DocumentEncoder::encode(std::string_view document, std::vector<int32_t>& ids,
                             std::vector<uint8_t>& is_answer) const {
  if (format_) {
    const chat::Rendered rendered = chat::render(tokenizer_, *format_, chat::parse_conversation(document));
    ids.insert(ids.end(), rendered.ids.begin(), rendered.ids.end());
    is_answer.insert(is_answer.end(), rendered.is_answer.begin(), rendered.is_answer.end());
    return;
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
}

std::string DocumentEncoder::description() const {
  return "tokenizer " + io::hash_text(tokenizer_.hash()) +
         (format_ ? ", chat " + std::string(chat::name_of(*format_)) : "");
}

DocumentEncoder make_encoder(const std::string& tokenizer, const std::string& chat) {
  tokenizer::Tokenizer loaded =
      tokenizer == byte_tokenizer::kName ? tokenizer::Tokenizer::bytes() : tokenizer::Tokenizer::load(tokenizer);
  if (chat.empty()) return DocumentEncoder(std::move(loaded));
  const auto format = chat == "auto" ? chat::detect_format(loaded) : chat::find_format(chat);
  if (!format) {
    throw Error(ErrorCode::kUsage, "[prepare] --chat: got " + chat +
                                       ", expected auto, plain, chatml, llama2, llama3, mistral or smollm3.");
  }
  return DocumentEncoder(std::move(loaded), *format);
}

}  // namespace fsdp::train
