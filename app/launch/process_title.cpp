#include "app/launch/process_title.h"

#include <algorithm>
#include <cstring>

namespace fsdp::app {
namespace {

// The kernel shows the memory of main()'s arguments, which lie one after the other.
char* title = nullptr;
size_t title_size = 0;

}  // namespace

void keep_title_at(int argc, char** argv) {
  title = argv[0];
  title_size = static_cast<size_t>(argv[argc - 1] + std::strlen(argv[argc - 1]) - argv[0]);
}

void show_title(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(word).push_back('\0');
  const size_t size = std::min(text.size(), title_size);
  std::copy_n(text.data(), size, title);
  std::fill(title + size, title + title_size, '\0');
}

}  // namespace fsdp::app
