#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/config/config.h"

namespace fsdp::train {

// Where the value of an option lives in a Config.
using Slot = std::variant<bool*, int64_t*, double*, std::string*>;

// Which values an option may have.
struct Rule {
  std::optional<double> least;                      // numbers
  std::optional<double> most;                       // numbers
  std::vector<std::string> choices;                 // text; empty: any
  std::function<bool(const std::string&)> accepts;  // text: legal besides the choices
  // "at least 1", "one of: a, b", "" where anything goes.
  std::string describe() const;
};

// One key of the configuration. The table of these is the only place that knows a key: parsing, overrides, --help,
// docs/config.md and the resolved config.toml are made from it.
struct Option {
  std::string name;  // "train.lr"
  std::function<Slot(Config&)> slot;
  Rule rule;
  std::string help;

  std::string section() const;    // "train"
  std::string type_name() const;  // "boolean", "integer", "number", "text"
  // The value in `config`, written as TOML.
  std::string value(const Config& config) const;
  // "" if the value in `config` is legal, else what is expected.
  std::string complaint(const Config& config) const;
};

const std::vector<Option>& option_table();

// The entry named `name`, or null.
const Option* find_option(const std::string& name);

// The key that `name` was probably meant to be: the closest by edit distance, compared as a whole and, where only the
// section differs, by its last part. Empty where none is near.
std::string nearest_option(const std::string& name);

// For `fsdp train --help`: one line per key.
std::string option_help();

// For docs/config.md: one Markdown table per section.
std::string option_markdown();

}  // namespace fsdp::train
