#include "tests/app/launch/launch_script.h"

namespace fsdp::app {

CommandResult launch_script(int ranks, const std::string& script, const std::vector<std::string>& options,
                            const std::vector<std::string>& environment) {
  std::vector<std::string> words{FSDP_BINARY, "launch", "--nproc", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  for (const char* word : {"--", "/bin/sh", "-c"}) words.emplace_back(word);
  words.push_back(script);
  return run_command(words, environment);
}

int count(const std::string& text, const std::string& part) {
  int result = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++result;
  return result;
}

std::string wait_for(const std::string& file) { return "while [ ! -e " + file + " ]; do sleep 0.02; done\n"; }

}  // namespace fsdp::app
