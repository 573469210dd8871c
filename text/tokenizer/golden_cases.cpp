#include "text/tokenizer/golden_cases.h"

#include <algorithm>

#include "io/base/json.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

using Json = nlohmann::json;

std::string excerpt(const std::vector<int32_t>& ids, size_t around) {
  const size_t first = around < 3 ? 0 : around - 3;
  std::string text = first > 0 ? "[... " : "[";
  for (size_t i = first; i < ids.size() && i < first + 8; ++i)
    text += (i == first ? "" : ", ") + std::to_string(ids[i]);
  return text + (ids.size() > first + 8 ? " ...]" : "]");
}

std::string difference(const std::vector<int32_t>& got, const std::vector<int32_t>& expected) {
  if (got == expected) return {};
  const size_t at =
      static_cast<size_t>(std::mismatch(got.begin(), got.end(), expected.begin(), expected.end()).first - got.begin());
  return "got " + excerpt(got, at) + " at " + std::to_string(at) + ", expected " + excerpt(expected, at);
}

std::string difference(const std::string& got, const std::string& expected) {
  if (got == expected) return {};
  const size_t at =
      static_cast<size_t>(std::mismatch(got.begin(), got.end(), expected.begin(), expected.end()).first - got.begin());
  const size_t first = at < 10 ? 0 : at - 10;
  return "got ... " + io::in_quotes(got.substr(first, 40)) + " at byte " + std::to_string(at) + ", expected ... " +
         io::in_quotes(expected.substr(first, 40));
}

// Id by id; every part must be valid UTF-8.
std::string decode_in_parts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, SkipSpecial skip) {
  StreamDecoder stream(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    if (find_invalid_utf8(part)) return "a part that is not UTF-8: " + part;
    text += part;
  }
  return text + stream.finish();
}

// What is wrong with one case; empty if nothing.
std::string check_case(const Tokenizer& tokenizer, const Json& item) {
  const auto text = item.at("text").get<std::string>();
  const auto ids = item.at("ids").get<std::vector<int32_t>>();
  const auto ids_special = item.at("ids_special").get<std::vector<int32_t>>();
  const auto decoded = item.at("decoded").get<std::string>();
  const auto decoded_skip = item.value("decoded_skip", decoded);
  const auto name = [](const char* what, const std::string& wrong) {
    return wrong.empty() ? "" : what + (": " + wrong);
  };
  std::string wrong = name("ids", difference(tokenizer.encode(text), ids));
  if (wrong.empty()) wrong = name("ids_special", difference(tokenizer.encode(text, SpecialTokens::kAdd), ids_special));
  if (wrong.empty()) wrong = name("decoded", difference(tokenizer.decode(ids), decoded));
  if (wrong.empty())
    wrong = name("decoded_skip", difference(tokenizer.decode(ids_special, SkipSpecial::kYes), decoded_skip));
  if (wrong.empty()) wrong = name("stream", difference(decode_in_parts(tokenizer, ids, SkipSpecial::kNo), decoded));
  if (wrong.empty()) {
    wrong = name("stream_skip", difference(decode_in_parts(tokenizer, ids_special, SkipSpecial::kYes), decoded_skip));
  }
  return wrong;
}

}  // namespace

CaseReport check_cases(const Tokenizer& tokenizer, const std::filesystem::path& cases, size_t most) {
  const Json list = io::read_json_file(cases, {.max_bytes = uint64_t{1} << 30});
  CaseReport report;
  try {
    for (const Json& item : list) {
      const auto kind = item.at("kind").get<std::string>();
      const std::string wrong = check_case(tokenizer, item);
      CaseReport::Count& count = report.kinds[kind];
      ++count.num_cases;
      ++report.num_cases;
      if (wrong.empty()) continue;
      ++count.num_different;
      ++report.num_different;
      if (report.differences.size() >= most) continue;
      report.differences.push_back("case " + std::to_string(report.num_cases - 1) + " (" + io::in_quotes(kind) + ") " +
                                   io::in_quotes(item.at("text").get<std::string>()) + ": " + wrong);
    }
  } catch (const Json::exception& error) {
    throw io::Error(io::ErrorKind::kData, "[parity] " + io::in_quotes(cases.native()) + ": got case " +
                                              std::to_string(report.num_cases) + " of another layout (" +
                                              io::in_quotes(error.what()) +
                                              "), expected kind, text, ids, ids_special and decoded. Make it again.");
  }
  return report;
}

}  // namespace fsdp::tokenizer
