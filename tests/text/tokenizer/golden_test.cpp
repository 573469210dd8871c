// Ids and texts that Hugging Face's tokenizers computed (the fixtures, see docs/tokenizers.md).
#include <gtest/gtest.h>

#include <filesystem>

#include "text/tokenizer/golden_cases.h"

namespace fsdp::tokenizer {
namespace {

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, IdsAndTextsAreThoseOfHuggingFace) {
#ifdef FSDP_FIXTURES_DIR
  const std::filesystem::path folder = std::filesystem::path(FSDP_FIXTURES_DIR) / "tokenizers" / GetParam();
  const CaseReport report = check_cases(Tokenizer::load(folder), folder / "cases.json");
  EXPECT_GT(report.num_cases, 100);
  for (const std::string& difference : report.differences) ADD_FAILURE() << difference;
  EXPECT_EQ(report.num_different, 0);
#else
  GTEST_SKIP() << "no golden fixtures (FSDP_FIXTURES_DIR)";
#endif
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerGolden,
                         ::testing::Values("bytelevel-llama3", "gpt2", "metaspace-llama2", "qwen2-style",
                                           "digits-smollm2"));

}  // namespace
}  // namespace fsdp::tokenizer
