#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json/stage_readers.h"
#include "text/tokenizer/pipeline.h"
#include "text/tokenizer/stages/added_tokens.h"
#include "text/tokenizer/stages/normalizer.h"
#include "text/tokenizer/stages/pre_tokenizer.h"

namespace fsdp::tokenizer {

// What text goes through on its way to ids, in this order.
struct EncoderStages {
  AddedTokens raw_tokens;  // looked for in the text as it is
  Normalizer normalizer;
  AddedTokens normalized_tokens;  // looked for in normalized text
  PreTokenizer pre_tokenizer;
  Bpe model;
  Template around;
};

// A tokenizer.json of model type BPE.
class BpePipeline : public Pipeline {
 public:
  BpePipeline(EncoderStages stages, TokenTable tokens, Decoder decoder, Description description)
      : Pipeline(std::move(tokens), std::move(decoder), std::move(description)), stages_(std::move(stages)) {}

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const override;
  void encode_part(std::string_view text, Position position, std::vector<int32_t>& ids) const override;

 private:
  class Lease;

  void encode_text(std::string_view text, Recognized which, Position position, std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view text, bool is_start, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  EncoderStages stages_;
  // Caches that no call uses right now: as many as calls ran at the same time.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<BpeScratch>> free_;
};

}  // namespace fsdp::tokenizer
