#pragma once

#include <c10/core/Allocator.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/archive/stand_ins.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
}  // namespace caffe2::serialize

namespace fsdp {

// Takes the bytes of an archive in the order of the file; returns how many it took.
using ArchiveSink = std::function<size_t(const void* data, size_t num_bytes)>;

// An archive as LibTorch writes it, but for the content of certain memory: of that it knows only which record holds it.
class ArchiveSkeleton {
 public:
  struct Record {
    std::string name;
    bool compressed = false;
    std::optional<size_t> memory;  // index of the memory that it holds
  };

  // `write` writes the archive. Keeps a copy of what comes from other places than `memory`.
  ArchiveSkeleton(const std::function<void(const ArchiveSink&)>& write, const std::vector<MemoryRange>& memory);
  ~ArchiveSkeleton();

  // In the order of the file.
  const std::vector<Record>& records() const { return records_; }
  // Content of a record that holds none of the memory.
  std::pair<at::DataPtr, size_t> content(const Record& record) const;

 private:
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::vector<Record> records_;
};

}  // namespace fsdp
