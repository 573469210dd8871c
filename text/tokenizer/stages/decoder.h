#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {

// One step of the decoder of tokenizer.json: a list of token texts in, a list out.
struct DecoderStage {
  enum class Kind {
    kBytes,         // texts are raw bytes already (TokenTable::decoded); joins all
    kByteLevel,     // characters of the byte alphabet back to bytes; joins all
    kReplace,       // `pattern` by `content`
    kByteFallback,  // runs of <0xNN> to text
    kFuse,          // joins all
    kStrip,         // up to `start` and `stop` times `content` off both ends
    kMetaspace,     // `pattern` by a space; `drop_first`: by nothing in the first text
  };
  Kind kind;
  std::string pattern;
  std::string content;
  size_t start = 0;
  size_t stop = 0;
  bool drop_first = false;
};

// The whole decoder; immutable. What leaves the last stage is joined, with spaces in between if there is no decoder.
struct Decoder {
  enum class Joining { kTight, kSpaces };
  std::vector<DecoderStage> stages;
  Joining joining = Joining::kTight;
};

// Runs a decoder on token texts that arrive one by one. A text leaves as soon as nothing that follows can change it.
class TextStream {
 public:
  // `decoder` must outlive this.
  explicit TextStream(const Decoder& decoder);

  // Both append to `out`.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  struct State {
    bool is_fused = false;  // this stage gets one long text in parts
    bool is_first = true;   // nothing has come yet
    size_t num_cut = 0;     // kStrip
    std::string held;
    Utf8Repair repair;
  };

  void run(size_t stage, std::string_view text, std::string& out);
  void finish_stage(size_t stage, std::string& out);
  void run_byte_level(size_t stage, std::string_view text, std::string& out);
  void run_byte_fallback(size_t stage, std::string_view text, std::string& out);
  void release_bytes(size_t stage, std::string& out);
  void strip_part(size_t stage, std::string_view text, std::string& out);

  const Decoder* decoder_;
  std::vector<State> states_;
  bool is_first_output_ = true;
};

}  // namespace fsdp::tokenizer
