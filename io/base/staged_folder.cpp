#include "io/base/staged_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "io/base/atomic_file.h"
#include "io/base/error.h"

namespace fsdp::io {

namespace {

namespace fs = std::filesystem;

Error output_error(const fs::path& path, const std::string& detail) {
  return Error(ErrorKind::kUsage, "[output] " + in_quotes(path.native()) + ": " + detail);
}

bool is_of_weights(const std::string& file) {
  return file == "model.safetensors" || file == "model.safetensors.index.json" || file == "adapter_model.safetensors" ||
         file == ".metadata";
}

bool holds_weights_only(const fs::path& folder) {
  bool has_weights = false;
  bool is_empty = true;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename().native();
    is_empty = false;
    if (item.is_directory()) return false;
    has_weights = has_weights || is_of_weights(name);
  }
  return has_weights || is_empty;
}

void make_parents(const fs::path& target) {
  std::error_code error;
  const fs::path parent = target.parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) throw system_error("create", parent, error.value(), "a folder to write to");
}

// Beside `target`, of this process.
fs::path hidden_name(const fs::path& target, const char* what) {
  return target.parent_path() / ("." + target.filename().native() + what + std::to_string(::getpid()));
}

}  // namespace

fs::path make_staging_folder(const fs::path& target) {
  fs::path staging = hidden_name(target, ".tmp-");
  make_parents(target);
  std::error_code ignored;
  fs::remove_all(staging, ignored);
  if (::mkdir(staging.c_str(), 0777) != 0) throw system_error("create", staging, errno, "a new folder");
  return staging;
}

void publish_folder(const fs::path& staging, const fs::path& target) {
  std::error_code error;
  sync_folder(staging);
  const bool replaces = fs::exists(fs::symlink_status(target, error));
  const fs::path retired = hidden_name(target, ".old-");
  if (replaces) {
    fs::remove_all(retired, error);  // of a killed process of the same id
    fs::rename(target, retired, error);
    if (error) throw system_error("rename", target, error.value(), "the older folder to make room");
  }
  fs::rename(staging, target, error);
  if (error) {
    std::error_code ignored;
    if (replaces) fs::rename(retired, target, ignored);
    throw system_error("rename", target, error.value(), "the finished folder to take its name");
  }
  sync_folder(target.parent_path());
  if (replaces) fs::remove_all(retired, error);
}

StagedFolder::StagedFolder(const fs::path& target, bool overwrite, uint64_t num_bytes)
    : target_(fs::absolute(target).lexically_normal()) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // a slash at the end
  if (!target_.has_filename()) throw output_error(target, "got no name of a folder, expected one.");
  check_target(overwrite);
  const fs::path parent = target_.parent_path();
  make_parents(target_);
  std::error_code error;
  const fs::space_info space = fs::space(parent, error);
  if (!error && space.available < num_bytes) {
    throw Error(ErrorKind::kFileSystem, "[output] " + in_quotes(target_.native()) + ": got " +
                                            std::to_string(space.available) + " free bytes, expected at least " +
                                            std::to_string(num_bytes) + ". Free some space or choose another disk.");
  }
  staging_ = make_staging_folder(target_);
}

StagedFolder::StagedFolder(fs::path target) : target_(std::move(target)), staging_(make_staging_folder(target_)) {}

void StagedFolder::check_target(bool overwrite) const {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target_, error);
  if (!fs::exists(status)) return;
  if (!overwrite) {
    throw output_error(target_, "exists already, expected a new folder. Pass --overwrite to replace it.");
  }
  if (!fs::is_directory(status) || !holds_weights_only(target_)) {
    throw output_error(target_,
                       "got something else than a folder of weights, expected one to replace. Remove it yourself, "
                       "or choose another folder.");
  }
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void StagedFolder::publish() {
  publish_folder(staging_, target_);
  staging_.clear();
}

}  // namespace fsdp::io
