// A text file whose documents are separated by lines "--". What comes out is valid UTF-8 and what splitting it gives.
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/documents.h"
#include "text/documents/line_documents.h"
#include "text/documents/utf8.h"

namespace fsdp::fuzz {
namespace {

constexpr int64_t kMaxBytes = 512;
constexpr std::string_view kSeparator = "--";

// Says so independently of what is tested.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

void add(std::string text, bool is_too_long, ReadDocuments& expected) {
  if (!is_too_long && text.find_first_not_of(" \t\r\n") == std::string::npos) return;
  if (text.ends_with("\r\n")) {
    text.resize(text.size() - 2);
  } else if (text.ends_with('\n')) {
    text.pop_back();
  }
  if (is_too_long || !is_utf8(text)) {
    ++expected.num_skipped;
  } else {
    expected.texts.push_back(std::move(text));
  }
}

ReadDocuments expect(std::string_view content) {
  ReadDocuments expected;
  std::string text;
  bool is_too_long = false;
  std::string_view rest = without_mark(content);
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (line == kSeparator || line == std::string(kSeparator) + "\r") {
      add(std::move(text), is_too_long, expected);
      text.clear();
      is_too_long = false;
    } else {
      is_too_long = is_too_long || text.size() + line.size() > kMaxBytes;
      text.append(line).append(end == std::string_view::npos ? "" : "\n");
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  add(std::move(text), is_too_long, expected);
  if (expected.texts.empty() && expected.num_skipped == 0) expected.num_skipped = 1;  // the file itself
  return expected;
}

void check(std::string_view content, size_t piece) {
  io::DocumentOptions options;
  options.separator = kSeparator;
  options.max_document_bytes = kMaxBytes;
  const ReadDocuments got = read_both_ways(options, [&](const io::DocumentOptions& chosen) {
    return io::make_text_reader(std::make_unique<MemoryStream>(content, piece), "fuzz.txt", chosen);
  });
  require_expected(content, got, expect);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdp::fuzz::CostGate gate(size);
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  FUZZ_REQUIRE((fsdp::io::valid_utf8_prefix(content) == size) == fsdp::fuzz::is_utf8(std::string(content)));
  fsdp::fuzz::check(content, 1 + size % 97);
  return 0;
}
