#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "io/base/error.h"

namespace fsdp::io {

// A fresh folder that goes away with the object. Where TMPDIR says, not in the build tree: several checkouts and
// several processes of one test run may look at once, and mkdtemp() gives each a name of its own.
class TemporaryFolder {
 public:
  TemporaryFolder() : TemporaryFolder(std::filesystem::temp_directory_path()) {}
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    std::string name = (parent / "fsdp-io-test-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  size_t num_files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

// Kind and text of the Error that `function` throws; the text is "no error" if it throws none.
struct Caught {
  ErrorKind kind = ErrorKind::kUsage;
  std::string text = "no error";

  bool says(std::string_view part) const { return text.find(part) != std::string::npos; }
  bool is_one_line() const { return text.find('\n') == std::string::npos; }
};

template <class Function>
Caught catch_error(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {};
}

}  // namespace fsdp::io
