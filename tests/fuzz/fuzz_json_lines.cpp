// A file of JSON lines. What comes out is what nlohmann-json reads, line by line.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/documents.h"
#include "text/documents/line_documents.h"

namespace fsdp::fuzz {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxBytes = 2048;
constexpr const char* kField = "text";

// The text of a line, or nothing if it has none.
std::optional<std::string> text_of(std::string_view line) {
  if (line.size() > kMaxBytes || line.find('\0') != std::string_view::npos) return {};
  int num_fields = 0;
  const auto count = [&](int depth, Json::parse_event_t event, Json& parsed) {
    num_fields += event == Json::parse_event_t::key && depth == 1 && parsed == kField ? 1 : 0;
    return true;
  };
  const Json value = Json::parse(line, count, /*allow_exceptions=*/false);
  if (!value.is_object() || num_fields != 1 || !value[kField].is_string()) return {};
  return value[kField].get<std::string>();
}

ReadDocuments expect(std::string_view content) {
  ReadDocuments expected;
  std::string_view rest = without_mark(content);
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos && line.size() <= kMaxBytes) continue;
    if (auto text = text_of(line)) {
      expected.texts.push_back(std::move(*text));
    } else {
      ++expected.num_skipped;
    }
  }
  if (expected.texts.empty() && expected.num_skipped == 0) expected.num_skipped = 1;  // the file itself
  return expected;
}

void check(std::string_view content, size_t piece) {
  io::DocumentOptions options;
  options.text_field = kField;
  options.max_document_bytes = kMaxBytes;
  const ReadDocuments got = read_both_ways(options, [&](const io::DocumentOptions& chosen) {
    return io::make_json_lines_reader(std::make_unique<MemoryStream>(content, piece), "fuzz.jsonl", chosen);
  });
  require_expected(content, got, expect);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdp::fuzz::CostGate gate(size);
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::check(content, 1 + size % 97);
  return 0;
}
