#include "io/base/pooled_file.h"

#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fsdp::io {

namespace {

using OpenFile = std::shared_ptr<const InputFile>;

// The open files of the process, by the numbers of their owners. Thread-safe.
class Pool {
 public:
  uint64_t new_id() {
    const std::lock_guard lock(mutex_);
    return ++last_id_;
  }

  OpenFile find(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(id);
    if (found == places_.end()) return nullptr;
    files_.splice(files_.begin(), files_, found->second);
    return files_.front().second;
  }

  void insert(uint64_t id, OpenFile file) {
    const std::lock_guard lock(mutex_);
    if (places_.count(id) != 0) return;  // another thread was faster
    files_.emplace_front(id, std::move(file));
    places_[id] = files_.begin();
    if (files_.size() <= PooledFile::kMostOpen) return;
    places_.erase(files_.back().first);
    files_.pop_back();
  }

  void erase(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(id);
    if (found == places_.end()) return;
    files_.erase(found->second);
    places_.erase(found);
  }

 private:
  using Files = std::list<std::pair<uint64_t, OpenFile>>;

  std::mutex mutex_;
  uint64_t last_id_ = 0;
  Files files_;  // the one used last is the first
  std::unordered_map<uint64_t, Files::iterator> places_;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

PooledFile::PooledFile(std::filesystem::path path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  auto file = std::make_shared<const InputFile>(path_, kind_);
  size_ = file->size();
  id_ = pool().new_id();
  pool().insert(id_, std::move(file));
}

PooledFile::~PooledFile() {
  if (id_ != 0) pool().erase(id_);
}

PooledFile::PooledFile(PooledFile&& other) noexcept
    : path_(std::move(other.path_)), kind_(other.kind_), id_(std::exchange(other.id_, 0)), size_(other.size_) {}

PooledFile& PooledFile::operator=(PooledFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(kind_, other.kind_);
  std::swap(id_, other.id_);
  std::swap(size_, other.size_);
  return *this;
}

std::shared_ptr<const InputFile> PooledFile::open() const {
  if (OpenFile file = pool().find(id_)) return file;
  auto file = std::make_shared<const InputFile>(path_, kind_);
  if (file->size() != size_) {
    throw file->error("open", "got " + std::to_string(file->size()) + " bytes, expected " + std::to_string(size_) +
                                  " as before. The file was changed while in use.");
  }
  pool().insert(id_, file);
  return file;
}

}  // namespace fsdp::io
