#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// Takes one string out of JSON objects. The object is checked as a whole: strict JSON in UTF-8, and the field is there
// once. Not thread-safe. About 1 GB/s.
class JsonField {
 public:
  // What is wrong with an object: "got X, expected Y. Fix." and where, from its first byte.
  struct Problem {
    std::string detail;
    size_t at = 0;
  };

  // "text", or "a.b" for field b of object a. Empty: any object will do.
  explicit JsonField(std::string_view path);
  ~JsonField();

  // True, and the string, valid until the next call. REQUIRES: kPadding readable bytes behind `object`.
  bool find(std::string_view object, std::string_view& text, Problem& problem);

 private:
  class FastParser;

  bool find_slowly(std::string_view object, std::string_view& text, Problem& problem);

  std::vector<std::string> names_;  // from the outside in
  std::unique_ptr<FastParser> fast_;
  std::string slow_text_;
};

}  // namespace fsdp::io
