#include "fsdp/checkpoint/archive/archive_skeleton.h"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <unordered_map>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/archive/zip_header.h"

namespace fsdp {
namespace {

// A file in memory with holes, which read as zeros.
class SparseFile : public caffe2::serialize::ReadAdapterInterface {
 public:
  void append(const void* data, size_t num_bytes) {
    if (pieces_.empty() || hole_at_end_) pieces_.push_back({size_, ""});
    hole_at_end_ = false;
    pieces_.back().bytes.append(static_cast<const char*>(data), num_bytes);
    size_ += num_bytes;
  }

  void append_hole(size_t num_bytes) {
    hole_at_end_ = true;
    size_ += num_bytes;
  }

  size_t size() const override { return size_; }

  size_t read(uint64_t position, void* out, size_t num_bytes, const char* /*what*/) const override {
    if (position >= size_) return 0;
    const size_t end = std::min<size_t>(size_, position + num_bytes);
    std::memset(out, 0, end - position);
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                  [](uint64_t value, const Piece& other) { return value < other.position; });
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->position < end; ++piece) copy(*piece, position, end, out);
    return end - position;
  }

 private:
  struct Piece {
    uint64_t position;
    std::string bytes;
  };

  static void copy(const Piece& piece, uint64_t position, uint64_t end, void* out) {
    const uint64_t from = std::max(position, piece.position);
    const uint64_t to = std::min(end, piece.position + piece.bytes.size());
    if (from >= to) return;
    std::memcpy(static_cast<char*>(out) + (from - position), piece.bytes.data() + (from - piece.position), to - from);
  }

  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  bool hole_at_end_ = false;
};

// Sorts what LibTorch writes into copies and holes. A record's content comes in one call, from where the tensor has it.
class Sorter {
 public:
  Sorter(SparseFile& file, const std::vector<MemoryRange>& memory) : file_(file), memory_(memory) {
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].num_bytes > 0) by_address_.emplace(memory[i].data, i);
    }
  }

  // LibTorch's writer ends the process when its sink fails: an error waits until it is done.
  size_t take(const void* data, size_t num_bytes) noexcept {
    try {
      const auto found = by_address_.find(data);
      if (found == by_address_.end() || memory_[found->second].num_bytes != num_bytes) {
        file_.append(data, num_bytes);
      } else {
        found_.emplace(file_.size(), found->second);
        file_.append_hole(num_bytes);
      }
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    return num_bytes;
  }

  // From positions in the file to indices of memory.
  const std::map<uint64_t, size_t>& finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return found_;
  }

 private:
  SparseFile& file_;
  const std::vector<MemoryRange>& memory_;
  std::unordered_map<const void*, size_t> by_address_;
  std::map<uint64_t, size_t> found_;
  std::exception_ptr failure_;
};

}  // namespace

ArchiveSkeleton::ArchiveSkeleton(const std::function<void(const ArchiveSink&)>& write,
                                 const std::vector<MemoryRange>& memory) {
  const auto file = std::make_shared<SparseFile>();
  Sorter sorter(*file, memory);
  write([&sorter](const void* data, size_t num_bytes) { return sorter.take(data, num_bytes); });
  const std::map<uint64_t, size_t>& found = sorter.finish();
  reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(file);
  size_t holes = 0;
  for (const std::string& name : reader_->getAllRecords()) {
    Record record{name, false, std::nullopt};
    const auto hole = found.find(reader_->getRecordOffset(name));
    if (hole != found.end() && reader_->getRecordSize(name) > 0) {
      record.memory = hole->second;
      ++holes;
    } else {
      ZipHeader header;
      file->read(reader_->getRecordHeaderOffset(name), header.bytes, sizeof(header.bytes), "");
      record.compressed = header.compressed();
    }
    records_.push_back(std::move(record));
  }
  FSDP_ASSERT(holes == found.size(), found.size(), " tensors were written, and ", holes, " are records");
}

ArchiveSkeleton::~ArchiveSkeleton() = default;

std::pair<at::DataPtr, size_t> ArchiveSkeleton::content(const Record& record) const {
  auto [data, num_bytes] = reader_->getRecord(record.name);
  return {std::move(data), num_bytes};
}

}  // namespace fsdp
