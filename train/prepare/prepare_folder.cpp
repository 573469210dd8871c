#include "train/prepare/prepare_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "fsdp/base/error.h"
#include "io/base/atomic_file.h"
#include "io/base/error.h"
#include "io/base/file_ops.h"
#include "io/base/hash.h"
#include "io/base/json.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPieceSuffix = ".done";

nlohmann::json to_json(const PreparedPiece& piece) {
  nlohmann::json shards = nlohmann::json::object();
  for (const auto& [split, shard] : piece.shards) {
    shards[split] = {shard.name,     shard.num_tokens, shard.num_documents, shard.bin_hash,
                     shard.idx_hash, shard.mask_hash,  shard.num_answers};
  }
  return {{"key", piece.key},
          {"shards", shards},
          {"text_bytes", piece.num_text_bytes},
          {"empty_documents", piece.num_empty_documents},
          {"skipped", piece.skipped.count},
          {"reasons", piece.skipped.reasons},
          {"last", piece.is_last}};
}

PreparedPiece parse_piece(const nlohmann::json& json) {
  PreparedPiece piece;
  piece.key = json.at("key");
  for (const auto& [split, shard] : json.at("shards").items()) {
    piece.shards[split] = {shard.at(0), shard.at(1), shard.at(2), shard.at(3), shard.at(4), shard.at(5), shard.at(6)};
  }
  piece.num_text_bytes = json.at("text_bytes");
  piece.num_empty_documents = json.at("empty_documents");
  piece.skipped.count = json.at("skipped");
  piece.skipped.reasons = json.at("reasons").get<std::vector<std::string>>();
  piece.is_last = json.at("last");
  return piece;
}

bool is_whole(const fs::path& folder, const io::TokenShardInfo& shard) {
  const auto agrees = [&](const char* suffix, const std::string& hash) {
    return io::hash_text(io::hash_file(folder / (shard.name + suffix))) == hash;
  };
  return agrees(".bin", shard.bin_hash) && agrees(".idx", shard.idx_hash) &&
         (shard.mask_hash.empty() || agrees(".msk", shard.mask_hash));
}

bool holds_pieces(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == kPieceSuffix) return true;
  }
  return false;
}

struct stat status_of(const fs::path& folder) {
  struct stat status = {};
  if (::lstat(folder.c_str(), &status) != 0) {
    throw Error(ErrorCode::kFileSystem,
                "[prepare] " + folder.string() + ": " + std::generic_category().message(errno) + ". Prepare again.");
  }
  return status;
}

std::pair<uint64_t, uint64_t> identity_of(const fs::path& folder) {
  const struct stat status = status_of(folder);
  return {status.st_dev, status.st_ino};
}

// Where others may write to the parent, somebody may have taken the name first: with a link to another folder of this
// user, whose contents publish() would remove, or with pieces of his own.
void check_own_folder(const fs::path& folder) {
  const struct stat status = status_of(folder);
  const bool is_folder = S_ISDIR(status.st_mode);
  const bool is_ours = status.st_uid == ::geteuid();
  if (is_folder && is_ours && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return;
  const std::string got = !is_folder ? "something that is no folder"
                          : is_ours  ? "a folder that other users may write to"
                                     : "a folder of another user";
  throw Error(ErrorCode::kUsage, "[prepare] " + folder.string() + ": got " + got +
                                     ", expected none, or the one that an earlier run of this user left. Remove it, or "
                                     "choose another --output.");
}

// mkdir() follows no link and takes no folder that is there.
void make_own_folder(const fs::path& folder, const fs::path& target) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorCode::kFileSystem, "[prepare] " + target.string() + ": cannot be created: " + reason +
                                            ". Choose an --output in a folder you may write to.");
  };
  if (error) fail(error.message());
  if (::mkdir(folder.c_str(), 0755) == 0) return;
  if (errno != EEXIST) fail(std::generic_category().message(errno));
  check_own_folder(folder);
}

// What prepare() writes, the references of preferences that a run leaves there, and what is left of those that were cut
// short.
bool is_of_dataset(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const std::string ending = entry.path().extension().string();
  std::error_code ignored;
  if (entry.is_directory(ignored)) return name == io::kTokenizerFolder;
  const bool is_known = name == "dataset.json" || ending == ".bin" || ending == ".idx" || ending == ".msk" ||
                        name.starts_with(".references-");
  return is_known && entry.is_regular_file(ignored);
}

void check_only_dataset(const fs::path& target) {
  for (const auto& entry : fs::directory_iterator(target)) {
    if (is_of_dataset(entry)) continue;
    throw Error(ErrorCode::kUsage, "[prepare] " + target.string() + ": got " +
                                       io::in_quotes(entry.path().filename().string()) +
                                       " beside the data set, expected nothing that --overwrite would remove with it. "
                                       "Move it away, or choose another --output.");
  }
}

// A wrong path must not cost anything.
void check_target(const fs::path& target, bool overwrite) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(target, ignored))) return;
  const std::string name = "[prepare] " + target.string() + ": ";
  if (!overwrite) {
    throw Error(ErrorCode::kUsage, name + "exists already. Pass --overwrite to replace it, or another --output.");
  }
  if (!fs::is_directory(target, ignored) || !(fs::exists(target / "dataset.json") || fs::is_empty(target))) {
    throw Error(ErrorCode::kUsage,
                name + "got something else than a data set, expected one to replace. Choose another --output.");
  }
  check_only_dataset(target);
}

}  // namespace

PrepareFolder::PrepareFolder(const fs::path& target, bool overwrite)
    : target_(fs::absolute(target).lexically_normal()) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // a slash at the end
  check_target(target_, overwrite);
  staging_ = target_.parent_path() / ("." + target_.filename().string() + ".prepare");
  make_own_folder(staging_, target_);
  lock_.emplace(staging_);
  identity_ = identity_of(staging_);
}

PrepareFolder::~PrepareFolder() {
  if (is_published_ || !lock_ || (holds_pieces(staging_) && !is_discarded_)) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

std::optional<PreparedPiece> PrepareFolder::find(const std::string& name, const std::string& key) const {
  const fs::path path = staging_ / (name + kPieceSuffix);
  if (!fs::exists(path)) return std::nullopt;
  try {
    const PreparedPiece piece = parse_piece(io::read_json_file(path));
    if (piece.key != key) return std::nullopt;
    for (const auto& [split, shard] : piece.shards) {
      if (!is_whole(staging_, shard)) return std::nullopt;
    }
    return piece;
  } catch (const io::Error&) {
  } catch (const nlohmann::json::exception&) {
  }
  return std::nullopt;  // whatever is wrong with it: it is made again
}

void PrepareFolder::finish(const std::string& name, const PreparedPiece& piece) const {
  const std::string text = to_json(piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  io::write_file_atomically(staging_ / (name + kPieceSuffix), text + "\n");
}

void PrepareFolder::publish(const io::DatasetManifest& manifest) {
  std::set<std::string> keep = {io::kTokenizerFolder};
  for (const auto& [split, shards] : manifest.splits) {
    for (const io::TokenShardInfo& shard : shards) {
      for (const char* suffix : {".bin", ".idx", ".msk"}) keep.insert(shard.name + suffix);
    }
  }
  if (identity_of(staging_) != identity_) {
    throw Error(ErrorCode::kFileSystem, "[prepare] " + staging_.string() +
                                            ": another folder stands in its place. Prepare again, in a folder where "
                                            "only you may write.");
  }
  io::write_dataset_manifest(staging_, manifest);
  keep.insert("dataset.json");
  io::FileOps& files = io::system_files();
  for (const auto& entry : fs::directory_iterator(staging_)) {
    if (keep.count(entry.path().filename().string()) == 0) files.remove_all(entry.path());
  }
  files.sync_folder(staging_);
  const fs::path retired = staging_.string() + "-old";
  files.remove_all(retired);
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(target_, ignored));
  if (replaces) files.rename(target_, retired);
  files.rename(staging_, target_);
  is_published_ = true;
  files.sync_folder(target_.parent_path());
  if (replaces) files.remove_all(retired);
}

}  // namespace fsdp::train
