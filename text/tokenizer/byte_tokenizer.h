#pragma once

#include <cstdint>
#include <string>

// The tokenizer of `fsdp prepare`: one token per byte and three special tokens. A document becomes
// kBegin, its bytes, kEnd.
namespace fsdp::train::byte_tokenizer {

inline constexpr const char* kName = "bytes";
inline constexpr int32_t kBegin = 256;
inline constexpr int32_t kEnd = 257;
inline constexpr int32_t kPad = 258;
inline constexpr int64_t kVocabSize = 259;

inline constexpr bool is_byte(int64_t id) { return id >= 0 && id < 256; }

// Content of fsdp_tokenizer.json, the file that marks a model folder as one of this tokenizer.
inline constexpr const char* kMarkerFile = "fsdp_tokenizer.json";
std::string marker_json();

}  // namespace fsdp::train::byte_tokenizer
