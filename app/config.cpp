#include <cstdio>

#include "app/command_line.h"
#include "train/config/config_file.h"
#include "train/config/option_table.h"

namespace fsdp::app {

int run_config(const Arguments& arguments) {
  std::string file;
  bool markdown = false;
  CLI::App parser("Prints every configuration key: as TOML with the values a run would have, or as documentation.",
                  "fsdp config");
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
