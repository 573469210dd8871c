#include "app/launch/process_title.h"

#include <algorithm>
#include <cstring>

namespace fsdp::app {
namespace {

// Texts that lie one after the other, as the system shows them.
struct Texts {
  char* begin = nullptr;
  size_t size = 0;
};

Texts arguments_shown;
Texts environment_shown;

Texts found_at(char** texts) {
  Texts found{texts[0], 0};
  for (; *texts != nullptr; ++texts) {
    if (*texts != found.begin + found.size) break;  // somebody replaced it
    found.size += std::strlen(*texts) + 1;
  }
  return found;
}

void write(const Texts& place, const std::vector<std::string>& texts) {
  if (place.size == 0) return;
  std::string all;
  for (const std::string& text : texts) all.append(text).push_back('\0');
  all.resize(place.size, '\0');
  all.back() = '\0';
  std::copy(all.begin(), all.end(), place.begin);
}

}  // namespace

void keep_title_at(int argc, char** argv, char** environment) {
  if (argc > 0) arguments_shown = found_at(argv);
  environment_shown = found_at(environment);
}

void show_title(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  write(arguments_shown, arguments);
  write(environment_shown, environment);
}

}  // namespace fsdp::app
