#include "text/tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fsdp::train {
namespace {

TEST(ByteTokenizer, MarkerIsJson) {
  const auto json = nlohmann::json::parse(byte_tokenizer::marker_json());
  EXPECT_EQ(json.at("vocab_size"), byte_tokenizer::kVocabSize);
  EXPECT_EQ(json.at("eos_token_id"), byte_tokenizer::kEnd);
}

}  // namespace
}  // namespace fsdp::train
