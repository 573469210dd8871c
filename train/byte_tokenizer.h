#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::train {

// The tokenizer of `fsdp prepare`: one token per byte and three special tokens. A document becomes
// kBegin, its bytes, kEnd.
namespace byte_tokenizer {

inline constexpr const char* kName = "bytes";
inline constexpr int32_t kBegin = 256;
inline constexpr int32_t kEnd = 257;
inline constexpr int32_t kPad = 258;
inline constexpr int64_t kVocabSize = 259;

inline constexpr bool is_byte(int64_t id) { return id >= 0 && id < 256; }

// Content of fsdp_tokenizer.json, the file that marks a model folder as one of this tokenizer.
inline constexpr const char* kMarkerFile = "fsdp_tokenizer.json";
std::string marker_json();

}  // namespace byte_tokenizer

// Turns bytes that arrive one by one into valid UTF-8: holds an incomplete sequence back, replaces what can never
// become one by U+FFFD.
class Utf8Stream {
 public:
  // Text that is certain after this byte; may be empty.
  std::string push(unsigned char byte);
  // What was held back, replaced.
  std::string finish();

 private:
  std::string pending_;
};

// All of `bytes` at once.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace fsdp::train
