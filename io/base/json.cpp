#include "io/base/json.h"

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "io/base/input_file.h"

namespace fsdp::io {

namespace {

using Json = nlohmann::json;

// Walks the text and tells the outside how far the parser has come: the SAX events themselves carry no position.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* at, const char** latest) : at_(at), latest_(latest) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    *latest_ = ++at_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** latest_;
};

// Builds the document from parser events; every event that breaks a limit throws.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, std::string_view origin, const JsonLimits& limits)
      : text_(text), origin_(origin), limits_(limits), latest_(text.data()) {}

  const char** latest() { return &latest_; }
  Json take() { return std::move(root_); }

  bool null() override { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return add(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)) != nullptr; }
  bool string(string_t& value) override { return add(Json(std::move(value))) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    if (open_.back()->contains(value)) {
      fail("got the key " + in_quotes(value) + " a second time, expected every key once. Remove one");
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& reason) override {
    std::string text = reason.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": the end is what helps.
    const size_t colon = text.find(": ");
    if (colon != std::string::npos) text.erase(0, colon + 2);
    text = in_quotes(text);
    fail("got " + text + ", expected JSON in UTF-8. Repair the file");
  }

 private:
  [[noreturn]] void fail(const std::string& detail) const {
    size_t line = 1;
    size_t column = 1;
    for (const char* c = text_.data(); c + 1 < latest_; ++c) {
      column = *c == '\n' ? 1 : column + 1;
      line += *c == '\n' ? 1 : 0;
    }
    throw Error(limits_.kind, "[json] " + in_quotes(origin_) + ":" + std::to_string(line) + ":" +
                                  std::to_string(column) + ": " + detail + ".");
  }

  Json* add(Json value) {
    if (++num_values_ > limits_.max_values) {
      fail("got more than " + std::to_string(limits_.max_values) + " values, expected fewer. This is not such a file");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool open(Json container) {
    if (open_.size() >= static_cast<size_t>(limits_.max_depth)) {
      fail("got more than " + std::to_string(limits_.max_depth) + " nested levels, expected fewer. Flatten the file");
    }
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string_view origin_;
  JsonLimits limits_;
  const char* latest_;
  Json root_;
  std::vector<Json*> open_;  // objects and arrays not closed yet; only the last one grows, so pointers stay valid
  std::string key_;
  int64_t num_values_ = 0;
};

void check_size(uint64_t num_bytes, std::string_view origin, const JsonLimits& limits) {
  if (num_bytes <= limits.max_bytes) return;
  throw Error(limits.kind, "[json] " + in_quotes(origin) + ": got " + std::to_string(num_bytes) +
                               " bytes, expected at most " + std::to_string(limits.max_bytes) +
                               ". This is not such a file.");
}

}  // namespace

Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  check_size(text.size(), origin, limits);
  Builder builder(text, origin, limits);
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    // nlohmann-json takes a NUL for the end of the text and would ignore what follows.
    throw Error(limits.kind, "[json] " + in_quotes(origin) + ": got a NUL byte at offset " + std::to_string(nul) +
                                 ", expected JSON in UTF-8. Repair the file.");
  }
  const TrackedIterator first(text.data(), builder.latest());
  const TrackedIterator last(text.data() + text.size(), builder.latest());
  Json::sax_parse(first, last, &builder);  // a failure has thrown from Builder
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const InputFile file(path, limits.kind);
  check_size(file.size(), path.native(), limits);
  std::string text(file.size(), '\0');
  file.read_at(0, text.data(), text.size());
  return parse_json(text, path.native(), limits);
}

std::string json_string(std::string_view text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw Error(ErrorKind::kUsage,
                "[json] string " + in_quotes(text) + ": got bytes that are not UTF-8, expected UTF-8.");
  }
}

}  // namespace fsdp::io
