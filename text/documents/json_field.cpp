#include "text/documents/json_field.h"

#include <simdjson.h>

#include <algorithm>
#include <bit>

#include "text/documents/json_events.h"
#include "text/documents/line_reader.h"

namespace fsdp::io {

namespace {

static_assert(LineReader::kPadding >= simdjson::SIMDJSON_PADDING);

std::vector<std::string> split_at_dots(std::string_view path) {
  std::vector<std::string> names;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    names.emplace_back(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return names;
}

// The value of `name` if `element` is an object that has it exactly once.
bool enter(simdjson::dom::element& element, std::string_view name) {
  simdjson::dom::object object;
  if (element.get_object().get(object) != simdjson::SUCCESS) return false;
  int num_found = 0;
  for (const simdjson::dom::key_value_pair field : object) {
    if (field.key != name) continue;
    element = field.value;
    ++num_found;
  }
  return num_found == 1;
}

}  // namespace

class JsonField::FastParser {
 public:
  // False for whatever is not plainly right.
  bool find(std::string_view object, const std::vector<std::string>& names, std::string_view& text) {
    // Grown in steps, not line by line: simdjson would make its buffers anew for every line that is longer than all
    // before. Its index has 4 bytes for each of the capacity, so the steps are quarters of a power of two.
    const size_t wanted = std::max(object.size(), kLeastCapacity);
    const size_t step = std::bit_floor(wanted) / 4;
    const size_t capacity = (wanted + step - 1) / step * step;
    if (parser_.capacity() < capacity && parser_.allocate(capacity) != simdjson::SUCCESS) return false;
    simdjson::dom::element element;
    if (parser_.parse(object.data(), object.size(), /*realloc_if_needed=*/false).get(element) != simdjson::SUCCESS) {
      return false;
    }
    if (names.empty()) {
      text = object;
      return element.is_object();
    }
    for (const std::string& name : names) {
      if (!enter(element, name)) return false;
    }
    return element.get_string().get(text) == simdjson::SUCCESS;
  }

 private:
  static constexpr size_t kLeastCapacity = size_t{64} << 10;

  simdjson::dom::parser parser_;
};

JsonField::JsonField(std::string_view path) : names_(split_at_dots(path)), fast_(std::make_unique<FastParser>()) {}

JsonField::~JsonField() = default;

bool JsonField::find(std::string_view object, std::string_view& text, Problem& problem) {
  return fast_->find(object, names_, text) || find_slowly(object, text, problem);
}

// Says what is wrong, and takes what simdjson does not: integers of more than 64 bits, more than 1024 levels.
bool JsonField::find_slowly(std::string_view object, std::string_view& text, Problem& problem) {
  const size_t nul = object.find('\0');
  if (nul != std::string_view::npos) {
    // nlohmann-json takes a NUL for the end of the text and would ignore what follows.
    problem = {"got a NUL byte, expected JSON in UTF-8. Repair the line.", nul};
    return false;
  }
  JsonPathEvents events(names_);
  nlohmann::json::sax_parse(object.begin(), object.end(), &events);
  problem = {events.problem(), std::min(events.problem_at(), object.size())};
  if (!problem.detail.empty()) return false;
  slow_text_.swap(events.text());
  text = names_.empty() ? object : std::string_view(slow_text_);
  return true;
}

}  // namespace fsdp::io
