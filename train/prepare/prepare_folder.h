#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "io/checkpoint/checkpoint_folder.h"
#include "io/tokens/token_shards.h"
#include "train/prepare/document_stream.h"

namespace fsdp::train {

// A piece of the input that is done: its shards, and what came of its documents.
struct PreparedPiece {
  std::string key;                                   // of the input and of the options that matter
  std::map<std::string, io::TokenShardInfo> shards;  // by split; splits without documents are left out
  int64_t num_text_bytes = 0;
  int64_t num_empty_documents = 0;
  Skipped skipped;
  bool is_last = false;  // of its files
};

// The folder in which a data set is made: hidden, beside its target, with a name that the next run finds. Pieces that
// are finished stay there when a run is interrupted. One process at a time.
class PrepareFolder {
 public:
  // Throws Error(kUsage) if the target exists and is not to be replaced, or is no data set, or holds something beside
  // one, or if another process makes it, or if a folder of that name is there already that is not this user's own, or a
  // link; Error(kFileSystem) if the folder cannot be made.
  PrepareFolder(const std::filesystem::path& target, bool overwrite);
  // Removes the folder, unless it was published or holds finished pieces.
  ~PrepareFolder();
  PrepareFolder(const PrepareFolder&) = delete;
  PrepareFolder& operator=(const PrepareFolder&) = delete;

  const std::filesystem::path& path() const { return staging_; }

  // The piece of that name if it was finished with the same key, and its shards are what they were.
  std::optional<PreparedPiece> find(const std::string& name, const std::string& key) const;
  // Durable once it returns. Thread-safe for different names.
  void finish(const std::string& name, const PreparedPiece& piece) const;

  // Nothing of it shall be kept.
  void discard() { is_discarded_ = true; }
  // Removes what is not of these shards, and gives the folder its name. Once it returns, it survives a power failure.
  void publish(const io::DatasetManifest& manifest);

 private:
  std::filesystem::path target_;
  std::filesystem::path staging_;
  std::pair<uint64_t, uint64_t> identity_;  // device and inode of staging_
  std::optional<io::FolderLock> lock_;
  bool is_published_ = false;
  bool is_discarded_ = false;
};

}  // namespace fsdp::train
