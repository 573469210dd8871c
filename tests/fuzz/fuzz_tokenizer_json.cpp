// A tokenizer.json and, as second part, a text. Accepted means: any text encodes to ids of tokens, twice to the same,
// and they decode to valid UTF-8, at once and id by id.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode/unicode.h"
#include "text/unicode/utf8.h"

namespace fsdp::fuzz {
namespace {

using tokenizer::SkipSpecial;
using tokenizer::SpecialTokens;
using tokenizer::StreamDecoder;
using tokenizer::Tokenizer;

constexpr size_t kMaxText = 200;  // bytes; a pattern may take up to a million steps for each of its matches

std::string to_text(std::string_view bytes) {
  tokenizer::Utf8Repair repair;
  std::string text;
  repair.push(bytes.substr(0, kMaxText), text);
  repair.finish(text);
  return text;
}

void check_decoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, SkipSpecial skip) {
  const std::string text = tokenizer.decode(ids, skip);
  FUZZ_REQUIRE(!tokenizer::find_invalid_utf8(text));
  StreamDecoder stream(tokenizer, skip);
  std::string parts;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    FUZZ_REQUIRE(!tokenizer::find_invalid_utf8(part));
    parts += part;
  }
  FUZZ_REQUIRE(parts + stream.finish() == text);
}

void check_text(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  if (!accepts([&] { ids = tokenizer.encode(text, SpecialTokens::kAdd); })) return;  // a pattern that is too slow
  FUZZ_REQUIRE(tokenizer.encode(text, SpecialTokens::kAdd) == ids);
  const auto is_token = [&](int32_t id) { return id >= 0 && id < tokenizer.vocab_size(); };
  FUZZ_REQUIRE(std::all_of(ids.begin(), ids.end(), is_token));
  for (int32_t id = -1; id < 20; ++id) ids.push_back(id);
  check_decoding(tokenizer, ids, SkipSpecial::kNo);
  check_decoding(tokenizer, ids, SkipSpecial::kYes);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  // Tables that are made once.
  static const bool has_tables = (tokenizer::CharacterClasses::get(), tokenizer::is_nfc("\xCC\x81"));
  static_cast<void>(has_tables);
  const fuzz::CostGate gate(size);
  static fuzz::MemoryFile file;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, 2);
  file.assign(parts[0]);
  fuzz::accepts([&] {
    const tokenizer::Tokenizer loaded = tokenizer::Tokenizer::load(file.path());
    fuzz::check_text(loaded, fuzz::to_text(parts[1]));
    fuzz::check_text(loaded, "a b\t1\xE2\x96\x81\xC3\xA4'S \n");
  });
  return 0;
}
