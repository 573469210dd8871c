// `fsdp config`: the keys of a configuration, whether a file has legal ones, and in what two differ.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/command_line.h"
#include "fsdp/base/error.h"
#include "train/base/terminal_text.h"
#include "train/config/config_file.h"
#include "train/config/option_table.h"
#include "train/data/mixture.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigHelp =
    "Prints every configuration key: as TOML with the values a run would have, or as documentation.\n"
    "`fsdp config check FILE`: whether a run would take the file, and what it changes.\n"
    "`fsdp config diff A B`: in which keys two files differ, or two folders of runs.";

// A folder of a run stands for the config.toml in it.
std::string config_path(const std::string& given) {
  std::error_code ignored;
  return fs::is_directory(given, ignored) ? (fs::path(given) / "config.toml").string() : given;
}

void print_change(const train::Option& option, const train::Config& before, const train::Config& after) {
  std::printf("  %s: %s -> %s\n", option.name.c_str(), train::for_terminal(option.value(before)).c_str(),
              train::for_terminal(option.value(after)).c_str());
}

// Prints a line for each key; returns how many.
int print_changes(const train::Config& before, const train::Config& after) {
  int count = 0;
  for (const train::Option& option : train::option_table()) {
    if (option.value(before) == option.value(after)) continue;
    print_change(option, before, after);
    ++count;
  }
  return count;
}

// Folders may come to be before the run does: that they are not there is told, and no error.
void note_missing(const char* key, const std::string& path) {
  std::error_code ignored;
  if (!path.empty() && !fs::exists(path, ignored))
    std::printf("  note: %s: %s is not there from here\n", key, train::for_terminal(path).c_str());
}

int check_config(const Arguments& arguments) {
  std::string file;
  CLI::App parser(
      "Says whether `fsdp train` would take a configuration, and which keys it changes from their defaults.",
      "fsdp config check");
  parser.allow_extras();
  parser.add_option("FILE", file, "TOML file or folder of a run; --section.key=value may follow")->required();
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  const train::Config config = train::load_config(config_path(file), parser.remaining());
  std::printf("%s: a run would take it. From their defaults it changes:\n", train::for_terminal(file).c_str());
  if (print_changes({}, config) == 0) std::puts("  nothing");
  if (config.data.path.empty()) std::puts("  note: data.path is not set, and `fsdp train` needs it");
  if (!config.data.path.empty())
    for (const train::MixturePart& part : train::parse_mixture(config.data.path)) note_missing("data.path", part.path);
  note_missing("model.path", config.model.path);
  return 0;
}

int diff_configs(const Arguments& arguments) {
  std::string first, second;
  CLI::App parser("Says in which keys two configurations differ. Keys that a file leaves out have their defaults.",
                  "fsdp config diff");
  parser.add_option("A", first, "TOML file or folder of a run")->required();
  parser.add_option("B", second, "the other one")->required();
  if (parse(parser, arguments) == Parsed::kHelpShown) return 0;
  const train::Config before = train::load_config(config_path(first), {});
  const train::Config after = train::load_config(config_path(second), {});
  std::printf("%s -> %s\n", train::for_terminal(first).c_str(), train::for_terminal(second).c_str());
  if (print_changes(before, after) == 0) std::puts("  no difference");
  return 0;
}

}  // namespace

int run_config(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "check") return check_config({arguments.begin() + 1, arguments.end()});
  if (!arguments.empty() && arguments.front() == "diff") return diff_configs({arguments.begin() + 1, arguments.end()});
  std::string file;
  bool markdown = false;
  CLI::App parser(kConfigHelp, "fsdp config");
  parser.allow_extras();
  parser.add_option("FILE", file, "TOML file; --section.key=value may follow");
  parser.add_flag("--markdown", markdown, "the tables of docs/config.md");
  if (parse(parser, arguments) == Parsed::kHelpShown) {
    return 0;
  }
  const std::string text =
      markdown ? train::option_markdown() : train::config_to_toml(train::load_config(file, parser.remaining()));
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace fsdp::app
