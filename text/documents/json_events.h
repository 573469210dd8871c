#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// Follows the events of a JSON parser to the string at a path of names. Keeps nothing but that string, whatever the
// text holds: neither depth nor number of values needs a limit.
class JsonPathEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonPathEvents(const std::vector<std::string>& names) : names_(names), num_seen_(names.size(), 0) {}

  bool null() override { return take("null"); }
  bool boolean(bool) override { return take("a boolean"); }
  bool number_integer(number_integer_t) override { return take("a number"); }
  bool number_unsigned(number_unsigned_t) override { return take("a number"); }
  bool number_float(number_float_t, const string_t&) override { return take("a number"); }
  bool binary(binary_t&) override { return take("binary data"); }
  bool string(string_t& value) override;
  bool key(string_t& name) override;
  bool start_object(size_t) override;
  bool start_array(size_t) override;
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& reason) override;

  // After parsing: what is wrong, as "got X, expected Y. Fix.", and where; empty if the string was found.
  std::string problem() const;
  size_t problem_at() const { return error_at_; }
  std::string& text() { return text_; }

 private:
  bool take(std::string_view type);
  void list(const std::string& name);
  bool close();

  const std::vector<std::string>& names_;
  std::vector<int> num_seen_;  // of each name
  size_t depth_ = 0;           // objects and arrays that are open
  size_t level_ = 0;           // of these, inside the root object: objects on the path
  bool is_wanted_ = false;     // the next value is that of names_[level_]
  std::string_view root_type_;
  std::string_view found_type_;  // of the value that ended the path
  size_t found_level_ = 0;       // of the name it had
  std::string root_names_;       // some of them, for the message
  size_t num_root_names_ = 0;
  std::string text_;
  std::string error_;
  size_t error_at_ = 0;
};

}  // namespace fsdp::io
