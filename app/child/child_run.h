#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fsdp::app {

// Runs this program again with `words` behind its name, and waits for its end; what it prints goes to the end of `log`.
// `variables` (value by name) replace those of the environment. Returns its exit code, 128 + n for signal n. Throws
// Error(kInternal) if it cannot be started.
int run_again(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables,
              const std::filesystem::path& log);

// The last line that is not empty; "" where there is none.
std::string last_line(const std::filesystem::path& path);

// A folder of its own below TMPDIR, which goes away with all in it. Throws Error(kFileSystem).
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::app
