#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::train {

// A file of JSON objects, one a line, each with a "step". Lines are written whole and at once, so that a reader never
// meets a part of one.
class LineFile {
 public:
  // Keeps what an earlier run wrote up to and including `last_step` (-1: nothing), but for evaluations and samples
  // of that step. A last line that was torn goes too. Throws Error(kFileSystem).
  LineFile(const std::filesystem::path& path, int64_t last_step);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void append(const std::string& json);
  // What was appended survives a power failure.
  void sync();
  // Forgets the lines of later steps.
  void go_back_to(int64_t last_step);

 private:
  void open();

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace fsdp::train
