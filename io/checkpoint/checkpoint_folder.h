#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/base/file_ops.h"

namespace fsdp::io {

// The checkpoints of one run: folders `step-<N>` in one parent. A name that starts with '.' is never a checkpoint:
// `.step-<N>.tmp-<token>` is being written, `.step-<N>.old-<token>` is being removed. `step-<N>.aside` is none any
// more: a run went back to an earlier one.

struct CheckpointPlace {
  int64_t step = 0;
  std::filesystem::path path;
};

// All `step-<N>` folders, newest first, valid or not. Empty if `root` does not exist.
std::vector<CheckpointPlace> list_checkpoints(const std::filesystem::path& root);

// Name of something in `root` to which no run gives that name; nothing: there is none, or no `root`.
std::optional<std::string> find_foreign(const std::filesystem::path& root);

std::filesystem::path checkpoint_path(const std::filesystem::path& root, int64_t step);

// Makes the folder (and `root`, where missing) to write step `step` into. `token` tells runs apart.
std::filesystem::path start_checkpoint(FileOps& files, const std::filesystem::path& root, int64_t step,
                                       const std::string& token);

// Writes the manifest into the finished folder of start_checkpoint(), syncs, and gives the folder its name; replaces a
// checkpoint of the same step. Once it returns, the checkpoint survives a power failure; before, it does not exist.
void commit_checkpoint(FileOps& files, const std::filesystem::path& staging, const std::string& manifest_text,
                       const std::filesystem::path& root, int64_t step);

// Which checkpoints stay.
struct KeepPolicy {
  int64_t last = 2;   // this many newest; 0: all
  int64_t every = 0;  // and those whose step is a multiple of it; 0: none
  // The step committed last; -1: the newest there is. It stays. Those of later steps, which a run that went back has
  // yet to reach again, stay too and do not count: they may be the damaged ones it went back from.
  int64_t committed = -1;
};

// Removes the checkpoints that the policy gives up; the one committed last always stays. Each vanishes under its name
// first, so that a half-removed one is never taken for a checkpoint. Returns the steps removed.
std::vector<int64_t> prune_checkpoints(FileOps& files, const std::filesystem::path& root, const KeepPolicy& policy);

// Removes what interrupted saves and removals left in `root`; gives its name to what is complete but for that. Only the
// holder of the run's lock may call it, before it looks for a checkpoint to resume from.
void remove_leftovers(FileOps& files, const std::filesystem::path& root);

// Points `latest` (a text file with the folder's name) at a step: a hint for people, never read by a resume.
void write_latest_hint(FileOps& files, const std::filesystem::path& root, int64_t step);

// The lock of an output folder: a file `.lock` that the system unlocks when its holder dies. The folder itself is
// locked too where the system can, so that deleting the file frees nothing. Move-only. A child of fork() that does not
// exec() holds it as well. On a file system without locks nothing is locked.
class FolderLock {
 public:
  // Throws Error(kUsage) naming host and process id of the holder if another process has it; Error(kFileSystem) if the
  // folder cannot be written.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

 private:
  void release() noexcept;

  int file_ = -1;    // descriptor of `.lock`
  int folder_ = -1;  // of the folder
};

// Free bytes of the file system that holds `folder`, for this user.
uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace fsdp::io
