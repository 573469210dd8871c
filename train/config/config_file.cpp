#include "train/config/config_file.h"

// Before toml++ refuses a table whose name begins as no name does ("[%]"), it asserts that there is none; under NDEBUG
// it lets compilers assume so. Without assertions, and without NDEBUG, it comes to its own error.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "fsdp/base/error.h"
#include "text/unicode/utf8.h"
#include "train/base/edit_distance.h"
#include "train/config/lr_schedule.h"
#include "train/config/option_table.h"
#include "train/config/toml_text.h"
#include "train/config/warmup_checks.h"

namespace fsdp::train {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
// toml++ makes one table inside the other for each dot of a key and destroys them by recursion: a line of dots would
// end the stack.
constexpr int kMaxDotsPerLine = 64;
constexpr size_t kLongestKey = 64;  // compared with the keys there are; longer ones have no near one
constexpr size_t kLongestMessage = 2000;

// Keys and values may come from a file of somebody else; control characters in them must not reach the terminal.
std::string in_one_line(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (out.size() > kLongestMessage) return out + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kUsage, in_one_line(message)); }

std::string position(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line) + ":" + std::to_string(source.begin.column) + ": ";
}

[[noreturn]] void refuse_unknown(const std::string& where, const std::string& key) {
  refuse(where + "unknown key " + key + did_you_mean(nearest_option(key.substr(0, kLongestKey))) +
         " `fsdp train --help` lists all keys");
}

[[noreturn]] void refuse_type(const std::string& where, const Option& option, const std::string& got) {
  const std::string legal = option.rule.describe();
  refuse(where + option.name + ": got " + got + ", expected " + option.type_name() +
         (legal.empty() ? "" : " (" + legal + ")"));
}

void check_value(const std::string& where, const Option& option, const Config& config) {
  const std::string expected = option.complaint(config);
  if (!expected.empty()) {
    refuse(where + option.name + ": got " + option.value(config) + ", expected " + expected);
  }
}

// A choice such as `auto | true | false` may be written as a TOML boolean.
bool offers_booleans(const Option& option) {
  const auto& choices = option.rule.choices;
  return std::find(choices.begin(), choices.end(), "true") != choices.end();
}

// A mixture may be written as a list: ["web:0.7", "books:0.3"].
bool assign_list(const toml::node& node, const Option& option, std::string& text) {
  const toml::array* list = node.as_array();
  if (option.name != "data.path" || list == nullptr || list->empty() || !list->is_homogeneous<std::string>()) {
    return false;
  }
  text.clear();
  for (const toml::node& item : *list) text += (text.empty() ? "" : ",") + item.as_string()->get();
  return true;
}

bool assign_node(const toml::node& node, const Option& option, Config& config) {
  const Slot slot = option.slot(config);
  if (const auto* boolean = std::get_if<bool*>(&slot)) {
    return node.is_boolean() && (**boolean = node.as_boolean()->get(), true);
  }
  if (const auto* integer = std::get_if<int64_t*>(&slot)) {
    return node.is_integer() && (**integer = node.as_integer()->get(), true);
  }
  if (const auto* number = std::get_if<double*>(&slot)) {
    return node.is_number() && (**number = node.value<double>().value(), true);
  }
  std::string& text = *std::get<std::string*>(slot);
  if (node.is_boolean() && offers_booleans(option)) {
    text = node.as_boolean()->get() ? "true" : "false";
    return true;
  }
  if (node.is_array()) return assign_list(node, option, text);
  return node.is_string() && (text = node.as_string()->get(), true);
}

std::string describe_node(const toml::node& node) {
  std::ostringstream text;
  text << node.type();
  return "a value of type " + text.str();
}

std::string section_names() {
  std::string names, last;
  for (const Option& option : option_table()) {
    if (option.section() == last) continue;
    last = option.section();
    names += (names.empty() ? "" : ", ") + last;
  }
  return names;
}

void apply_table(const std::string& path, const std::string& prefix, const toml::table& table, Config& config) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const std::string where = position(path, key.source());
    if (const toml::table* inner = node.as_table()) {
      const auto& all = option_table();
      const bool is_section =
          std::any_of(all.begin(), all.end(), [&](const Option& option) { return option.section() == name; });
      if (!is_section && !inner->empty()) {
        refuse_unknown(position(path, inner->begin()->first.source()),
                       name + "." + std::string(inner->begin()->first.str()));
      }
      if (!is_section) {
        refuse(where + "unknown section [" + name + "]; sections are " + section_names());
      }
      apply_table(path, name + ".", *inner, config);
      continue;
    }
    const Option* option = find_option(name);
    if (option == nullptr) {
      refuse_unknown(where, name);
    }
    if (!assign_node(node, *option, config)) {
      refuse_type(position(path, node.source()), *option, describe_node(node));
    }
    check_value(position(path, node.source()), *option, config);
  }
}

template <class Number>
bool parse_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc() && result.ptr == end;
}

bool assign_text(const std::string& value, const Option& option, Config& config) {
  const Slot slot = option.slot(config);
  if (const auto* boolean = std::get_if<bool*>(&slot)) {
    **boolean = value == "true";
    return value == "true" || value == "false";
  }
  if (const auto* integer = std::get_if<int64_t*>(&slot)) {
    return parse_number(value, **integer);
  }
  if (const auto* number = std::get_if<double*>(&slot)) {
    return parse_number(value, **number);
  }
  *std::get<std::string*>(slot) = value;
  return true;
}

void apply_override(const std::string& argument, Config& config) {
  const size_t equals = argument.find('=');
  if (argument.rfind("--", 0) != 0) {
    refuse("unexpected argument " + argument + "; a key is changed with --section.key=value");
  }
  std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  if (name == "resume") name = "checkpoint.resume";
  const Option* option = find_option(name);
  if (option == nullptr) {
    refuse_unknown("--" + name + ": ", name);
  }
  if (equals == std::string::npos) {
    refuse("--" + name + ": no value; write --" + name + "=VALUE");
  }
  const std::string value = argument.substr(equals + 1);
  if (tokenizer::find_invalid_utf8(value)) {  // config.toml could not be read again
    refuse("--" + name + ": got \"" + value + "\", expected UTF-8");
  }
  if (!assign_text(value, *option, config)) {
    refuse_type("--", *option, "\"" + value + "\"");
  }
  check_value("--", *option, config);
}

// What goes to the host's memory, which a CPU's is.
void check_host_offload(const Config& config) {
  if (config.shard.device != "cpu") return;
  if (config.shard.offload == "host") {
    refuse(
        "shard.offload: got \"host\" with shard.device = \"cpu\", whose memory is the host's already, expected none or "
        "disk; set that");
  }
  if (config.train.recompute != "offload") return;
  refuse(
      "train.recompute: got \"offload\" with shard.device = \"cpu\", whose memory is the host's already, expected "
      "block; set that");
}

void check_schedule_free(const Config& config) {
  if (config.optimizer.name != "schedule_free") return;
  const std::string with = " with optimizer.name = \"schedule_free\", ";
  if (config.train.schedule != "constant") {
    refuse("train.schedule: got \"" + config.train.schedule + "\"" + with +
           "whose average takes the place of a schedule, expected constant; set that");
  }
  if (config.train.ema > 0) {
    refuse("train.ema: got averages" + with + "which has an average of its own, expected 0; set that");
  }
  if (config.shard.offload == "disk") {
    refuse("shard.offload: got \"disk\"" + with +
           "which keeps a copy of the weights in memory while it evaluates, expected none; set that, or optimizer.name "
           "to adamw");
  }
}

// The training options.
void check_training(const Config& config) {
  if (config.train.steps == 0 && config.train.max_tokens == 0) {
    refuse("train.steps: got 0 without train.max_tokens, expected a limit; set one of them");
  }
  const TrainConfig train = resolve_tokens(config);
  if (train.warmup_steps > train.steps) {
    const std::string origin = config.train.steps == train.steps ? "" : " (of train.max_tokens)";
    refuse("train.warmup_steps: got " + std::to_string(train.warmup_steps) + ", expected at most train.steps " +
           std::to_string(train.steps) + origin + "; set both, or train.warmup_steps to 0 for no warm-up");
  }
  const CheckpointConfig& checkpoint = config.checkpoint;
  const bool saves = checkpoint.every_steps > 0 || checkpoint.every_minutes > 0;
  for (const auto& [key, policy] :
       {std::pair{"train.on_nonfinite", train.on_nonfinite}, {"train.on_spike", train.on_spike}}) {
    if (policy == "rollback" && !saves) {
      refuse(std::string(key) + ": got \"rollback\" without checkpoints to go back to; set checkpoint.every_steps");
    }
  }
  if (train.eval_weights == "ema" && train.ema == 0) {
    refuse("train.eval_weights: got \"ema\" without averages; set train.ema, such as 0.999");
  }
  if (config.optimizer.muon_per_head && config.optimizer.name != "muon") {
    refuse("optimizer.muon_per_head: got true with optimizer.name = \"" + config.optimizer.name +
           "\", expected muon; set that, or muon_per_head to false");
  }
  check_schedule_free(config);
  check_host_offload(config);
  if (train.fit_minutes > 0 && train.warmup_steps < 10) {
    refuse("train.fit_minutes needs train.warmup_steps of at least 10: speed is measured during the warm-up");
  }
}

// What no single key can tell.
void check_combinations(const Config& config) {
  const ModelConfig& model = config.model;
  if (model.path.empty()) {
    const bool has_even_share =
        model.hidden_size % model.heads == 0 && model.hidden_size / model.heads % 2 == 0;  // of the width
    if (model.head_dim == 0 && !has_even_share) {
      refuse("model.heads: got " + std::to_string(model.heads) + " heads for model.hidden_size " +
             std::to_string(model.hidden_size) +
             ", expected hidden_size / heads to be an even integer; set both, or model.head_dim");
    }
    if (model.heads % model.kv_heads != 0) {
      refuse("model.kv_heads: got " + std::to_string(model.kv_heads) + ", expected a divisor of model.heads " +
             std::to_string(model.heads));
    }
    if (model.weights == "load") {
      refuse("model.weights: got \"load\" without model.path; set model.path to a folder with weights");
    }
  }
  check_warmups(config);
  check_training(config);
}

toml::table parse_text(const std::string& origin, const std::string& text) {
  if (text.size() > kMaxBytes) {
    refuse(origin + ": got more than " + std::to_string(kMaxBytes) + " bytes; this is not a config file");
  }
  int line = 1;
  int dots = 0;
  for (const char c : text) {
    dots += c == '.' ? 1 : 0;
    if (dots > kMaxDotsPerLine) {
      refuse(origin + ":" + std::to_string(line) + ":1: got more than " + std::to_string(kMaxDotsPerLine) +
             " dots in a line, expected fewer; a key is section.key");
    }
    if (c == '\n') {
      ++line;
      dots = 0;
    }
  }
  // toml++ 3.3 meets its own "unreachable" on many of them.
  if (const auto place = find_unquoted_non_ascii(text)) {
    refuse(origin + ":" + std::to_string(place->line) + ":" + std::to_string(place->column) +
           ": got a character outside of ASCII, expected it in quotes or in a comment");
  }
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    refuse(position(origin, error.source()) + std::string(error.description()));
  }
}

toml::table parse_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');  // no more is read of a file that has no end
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad()) {
    refuse(path + ": cannot be read; pass an existing TOML file");
  }
  return parse_text(path, text);
}

}  // namespace

Config load_config(const std::string& path, const std::vector<std::string>& overrides) {
  Config config;
  if (!path.empty()) {
    apply_table(path, "", parse_file(path), config);
  }
  for (const std::string& argument : overrides) {
    apply_override(argument, config);
  }
  resolve_batch(config);
  check_combinations(config);
  return config;
}

Config parse_config(const std::string& text) {
  Config config;
  apply_table("config", "", parse_text("config", text), config);
  return config;
}

std::string config_to_toml(const Config& config) {
  std::ostringstream text;
  std::string section;
  for (const Option& option : option_table()) {
    if (option.section() != section) {
      text << (section.empty() ? "" : "\n") << "[" << option.section() << "]\n";
      section = option.section();
    }
    text << option.name.substr(section.size() + 1) << " = " << option.value(config) << "\n";
  }
  return text.str();
}

}  // namespace fsdp::train
