#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"
#include "train/generate/stop_strings.h"

namespace fsdp::train {

// The text of one row of a generation, made id by id: valid UTF-8 at any time, without special tokens, cut before the
// first stop string.
class GeneratedText {
 public:
  GeneratedText(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stop_strings)
      : decoder_(tokenizer, tokenizer::SkipSpecial::kYes), stop_(std::move(stop_strings)) {}

  // What this id adds that is certain; may be empty.
  std::string push(int64_t id) {
    ids_.push_back(id);
    return add(decoder_.push(static_cast<int32_t>(id)));
  }
  // The rest. No id follows.
  std::string finish() {
    std::string rest = add(decoder_.finish());
    const std::string held = stop_.finish();
    text_ += held;
    return rest + held;
  }
  bool stopped() const { return stop_.found(); }

  // All that push() and finish() returned.
  const std::string& text() const { return text_; }
  const std::vector<int64_t>& ids() const { return ids_; }

 private:
  std::string add(const std::string& decoded) {
    std::string certain = stop_.push(decoded);
    text_ += certain;
    return certain;
  }

  tokenizer::StreamDecoder decoder_;
  StopStrings stop_;
  std::string text_;
  std::vector<int64_t> ids_;
};

}  // namespace fsdp::train
