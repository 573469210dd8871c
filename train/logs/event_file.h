#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::train {

// A file of numbers over steps as TensorBoard reads them: TFRecords that hold Event messages (docs/logs.md). Records
// are written whole and at once.
class EventFile {
 public:
  // Makes `folder` and a new file in it. Numbers that files before it have for steps after `last_step` no longer count.
  // Throws Error(kFileSystem).
  EventFile(const std::filesystem::path& folder, int64_t last_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Local. Throws Error(kFileSystem).
  void add(int64_t step, const std::string& tag, double value);
  // What was added for later steps no longer counts: TensorBoard forgets it when it reads on.
  void go_back_to(int64_t last_step);

  // Removes the files of earlier runs, and nothing else.
  static void remove_all(const std::filesystem::path& folder);

 private:
  void append_record(const std::string& data);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace fsdp::train
