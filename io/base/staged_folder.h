#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::io {

// Makes the hidden folder beside `target` in which this process prepares what will have that name, and missing parents.
// It is new: what a killed process of the same id left is removed, and a folder or link that somebody else puts there
// meanwhile is Error(kFileSystem).
std::filesystem::path make_staging_folder(const std::filesystem::path& target);

// Gives `staging` the name `target`. A folder that had it is moved aside first, moved back if that fails, and removed
// in the end. Once it returns, the folder survives a power failure.
void publish_folder(const std::filesystem::path& staging, const std::filesystem::path& target);

// An output folder that appears under its name complete or not at all. Files go into path(), a hidden folder beside the
// target; publish() gives it the name. Without publish() the destructor removes it.
class StagedFolder {
 public:
  // Makes missing parents. Throws Error(kUsage) if `target` exists and `overwrite` is not set; and, whatever is set, if
  // it is something else than an empty folder or one of weights (model.safetensors, its index,
  // adapter_model.safetensors or `.metadata`, and no folders inside): a wrong path must not cost anything.
  // Error(kFileSystem) if fewer than `num_bytes` are free there.
  StagedFolder(const std::filesystem::path& target, bool overwrite, uint64_t num_bytes);
  // For one whose name is the caller's own: publish() replaces whatever has it.
  explicit StagedFolder(std::filesystem::path target);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }
  void publish();  // as publish_folder()

 private:
  void check_target(bool overwrite) const;

  std::filesystem::path target_;
  std::filesystem::path staging_;
};

}  // namespace fsdp::io
