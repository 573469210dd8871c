#include "io/checkpoint/checkpoint_folder.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/base/error.h"
#include "io/checkpoint/checkpoint_manifest.h"

namespace fsdp::io {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kHint = "latest";
constexpr std::string_view kHintBeingWritten = ".latest.tmp";

enum class Role { kCheckpoint, kBeingWritten, kBeingRemoved };

// An entry of the root that is ours.
struct Entry {
  int64_t step = 0;
  Role role = Role::kCheckpoint;
  fs::path path;
};

// What a name says, or nothing if it is no name that we give.
std::optional<Entry> entry_of(const fs::path& path) {
  const fs::path filename = path.filename();
  std::string_view name = filename.native();
  const bool is_hidden = name.starts_with('.');
  if (is_hidden) name.remove_prefix(1);
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  Entry entry{.path = path};
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), entry.step);
  const std::string_view digits = name.substr(0, static_cast<size_t>(end - name.data()));
  if (failure != std::errc{} || entry.step < 0 || digits != std::to_string(entry.step)) return std::nullopt;
  const std::string_view rest = name.substr(digits.size());
  if (!is_hidden) return rest.empty() ? std::optional<Entry>(entry) : std::nullopt;
  if (!rest.starts_with(".tmp-") && !rest.starts_with(".old-")) return std::nullopt;
  entry.role = rest.starts_with(".tmp-") ? Role::kBeingWritten : Role::kBeingRemoved;
  return entry;
}

// A checkpoint that a run put out of its way, and left to people.
bool is_set_aside(const fs::path& path) {
  if (path.extension() != ".aside") return false;
  const std::optional<Entry> entry = entry_of(path.stem());
  return entry && entry->role == Role::kCheckpoint;
}

bool is_there(const fs::path& path) {
  std::error_code failure;
  const fs::file_status status = fs::symlink_status(path, failure);
  if (status.type() == fs::file_type::not_found) return false;
  if (failure) throw system_error("open", path, failure.value(), "to learn what it is");
  return true;
}

// Everything in the root that is ours, in no order.
std::vector<Entry> entries_of(const fs::path& root) {
  std::vector<Entry> entries;
  std::error_code failure;
  fs::directory_iterator at(root, failure);
  if (failure == std::errc::no_such_file_or_directory) return entries;
  for (; !failure && at != fs::directory_iterator(); at.increment(failure)) {
    std::error_code vanished;
    if (!at->is_directory(vanished)) continue;
    if (std::optional<Entry> entry = entry_of(at->path())) entries.push_back(std::move(*entry));
  }
  if (failure) throw system_error("open", root, failure.value(), "to list the checkpoints in it");
  return entries;
}

fs::path hidden_path(const fs::path& root, int64_t step, std::string_view kind, const std::string& token) {
  return root / ("." + std::string(kPrefix) + std::to_string(step) + "." + std::string(kind) + "-" + token);
}

// A name under which a checkpoint that goes is removed.
fs::path free_old_path(const fs::path& root, int64_t step) {
  for (int64_t n = 0;; ++n) {
    fs::path path = hidden_path(root, step, "old", std::to_string(n));
    if (!is_there(path)) return path;
  }
}

// `folder` and what is missing above it.
void make_folders(FileOps& files, const fs::path& folder) {
  std::vector<fs::path> missing;
  for (fs::path path = folder; !path.empty() && !is_there(path); path = path.parent_path()) missing.push_back(path);
  for (; !missing.empty(); missing.pop_back()) {
    files.make_folder(missing.back());
    const fs::path parent = missing.back().parent_path();
    files.sync_folder(parent.empty() ? fs::path(".") : parent);
  }
}

void write_text(FileOps& files, const fs::path& path, std::string_view text) {
  const std::unique_ptr<OutputFile> file = files.create(path, WriteMode::kCached);
  file->write_at(0, text.data(), text.size());
  file->sync();
}

// Removes what has no name any more that counts. Once the checkpoint that replaces it is durable, failing to do so is
// no failure of the save: remove_leftovers() will try again and say what is wrong.
void try_to_remove(FileOps& files, const fs::path& path, const fs::path& old) {
  try {
    if (path != old) files.rename(path, old);
    files.remove_all(old);
  } catch (const Error&) {
  }
}

bool is_complete(const fs::path& folder) {
  try {
    read_manifest(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A folder with a manifest is complete but for its name: the manifest comes last. Where names cannot be swapped, a
// replacement is two renames, and after the first one only this brings the step back.
void finish_commits(FileOps& files, const fs::path& root, const std::vector<Entry>& entries) {
  for (const Entry& written : entries) {
    if (written.role != Role::kBeingWritten || is_there(checkpoint_path(root, written.step))) continue;
    if (!is_complete(written.path)) continue;
    files.rename(written.path, checkpoint_path(root, written.step));
    files.sync_folder(root);
  }
}

}  // namespace

std::vector<CheckpointPlace> list_checkpoints(const fs::path& root) {
  std::vector<CheckpointPlace> places;
  for (Entry& entry : entries_of(root)) {
    if (entry.role == Role::kCheckpoint) places.push_back({entry.step, std::move(entry.path)});
  }
  std::sort(places.begin(), places.end(),
            [](const CheckpointPlace& a, const CheckpointPlace& b) { return a.step > b.step; });
  return places;
}

std::optional<std::string> find_foreign(const fs::path& root) {
  std::error_code failure;
  for (const auto& item : fs::directory_iterator(root, failure)) {
    const std::string name = item.path().filename().native();
    const bool is_hint = name == kHint || name == kHintBeingWritten;
    if (!is_hint && !entry_of(item.path()) && !is_set_aside(item.path())) return name;
  }
  return std::nullopt;
}

fs::path checkpoint_path(const fs::path& root, int64_t step) {
  return root / (std::string(kPrefix) + std::to_string(step));
}

fs::path start_checkpoint(FileOps& files, const fs::path& root, int64_t step, const std::string& token) {
  if (step < 0 || token.size() > 100 || !is_plain_file_name(token)) {
    throw Error(ErrorKind::kUsage, "[checkpoint] got step " + std::to_string(step) + " and token " + in_quotes(token) +
                                       ", expected a step from 0 and a token that is a plain name.");
  }
  make_folders(files, root.has_filename() ? root : root.parent_path());  // "a/" has an empty file name
  fs::path staging = hidden_path(root, step, "tmp", token);
  if (is_there(staging)) files.remove_all(staging);  // the token is ours: a save that failed
  files.make_folder(staging);
  return staging;
}

void commit_checkpoint(FileOps& files, const fs::path& staging, const std::string& manifest_text, const fs::path& root,
                       int64_t step) {
  files.sync_folder(staging);  // the tensors' files have been synced by those who wrote them
  write_text(files, staging / kManifestName, manifest_text);
  files.sync_folder(staging);
  const fs::path target = checkpoint_path(root, step);
  if (!is_there(target)) {
    files.rename(staging, target);
    files.sync_folder(root);
    return;
  }
  const fs::path old = free_old_path(root, step);
  const bool swapped = files.exchange(staging, target);
  if (!swapped) {
    files.sync_folder(root);  // from here until the end remove_leftovers() needs the staging folder's name
    files.rename(target, old);
    files.rename(staging, target);
  }
  files.sync_folder(root);
  try_to_remove(files, swapped ? staging : old, old);
}

std::vector<int64_t> prune_checkpoints(FileOps& files, const fs::path& root, const KeepPolicy& policy) {
  if (policy.last < 0 || policy.every < 0) {
    throw Error(ErrorKind::kUsage, "[checkpoint] got keep_last " + std::to_string(policy.last) + " and keep_every " +
                                       std::to_string(policy.every) + ", expected 0 or more.");
  }
  if (policy.last == 0) return {};
  std::vector<int64_t> removed;
  std::vector<fs::path> hidden;
  int64_t num_newer = 0;
  for (const CheckpointPlace& place : list_checkpoints(root)) {
    if (policy.committed >= 0 && place.step > policy.committed) continue;
    if (num_newer++ < policy.last || (policy.every > 0 && place.step % policy.every == 0)) continue;
    hidden.push_back(free_old_path(root, place.step));
    files.rename(place.path, hidden.back());
    removed.push_back(place.step);
  }
  if (hidden.empty()) return removed;
  // Or a power failure could bring a name back after its files have gone.
  files.sync_folder(root);
  for (const fs::path& path : hidden) files.remove_all(path);
  return removed;
}

void remove_leftovers(FileOps& files, const fs::path& root) {
  finish_commits(files, root, entries_of(root));
  for (const Entry& entry : entries_of(root)) {
    if (entry.role != Role::kCheckpoint) files.remove_all(entry.path);
  }
  if (is_there(root / kHintBeingWritten)) files.remove_all(root / kHintBeingWritten);
}

void write_latest_hint(FileOps& files, const fs::path& root, int64_t step) {
  const fs::path temporary = root / kHintBeingWritten;
  if (is_there(temporary)) files.remove_all(temporary);
  write_text(files, temporary, checkpoint_path(root, step).filename().native() + "\n");
  files.rename(temporary, root / kHint);
  files.sync_folder(root);
}

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) throw system_error("open", folder, errno, "to learn its free space");
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace fsdp::io
