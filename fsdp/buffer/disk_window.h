#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "fsdp/buffer/disk_memory.h"

namespace fsdp {

// A read from a disk into memory of the caller. Its destructor waits, so that the memory may go after it.
class DiskRead {
 public:
  // Of all of `place`, which find_on_disk() knows and whose disk has a queue, to `to`: as many bytes.
  DiskRead(const DiskSpot& place, void* to);
  ~DiskRead();
  DiskRead(const DiskRead&) = delete;
  DiskRead& operator=(const DiskRead&) = delete;
  // Throws Error(kFileSystem).
  void wait();

 private:
  std::shared_ptr<DiskMemory> disk_;
  std::shared_ptr<DiskQueue::Transfer> transfer_;
};

// What a tensor holds, in memory, for one who passes over it: read while the window is open and not waited for, written
// after write(). A tensor that is not on a disk is its own window, as is one of a disk without a queue: that is read
// ahead and written behind. While a window is open, and until DiskMemory::finish_windows() after write(), the tensor
// itself must not be used, save by other windows: those come in order. Move-only.
class DiskWindow {
 public:
  enum class Content {
    kKept,  // is read
    kNew,   // will be written, all of it
  };
  DiskWindow() = default;
  // May wait for earlier writes of the same bytes.
  DiskWindow(const at::Tensor& place, Content content);
  ~DiskWindow() { release(); }  // without a write
  DiskWindow(DiskWindow&&) noexcept = default;
  DiskWindow& operator=(DiskWindow&&) noexcept;

  bool is_open() const { return place_.defined(); }
  // Shape and dtype of the place. memory() does not wait for what is read.
  const at::Tensor& memory() const { return memory_; }
  const at::Tensor& tensor() {
    wait();
    return memory_;
  }
  void wait();
  // Of what is read, for one who may not wait here; null where there is nothing to wait for.
  const std::shared_ptr<DiskRead>& arrival() const { return read_; }
  // Closes the window; what is in it goes to the disk. Returns at once, or when no more than kMostBehind wait. Throws
  // Error(kFileSystem) if an earlier write failed.
  void write();
  // Closes the window of what was only read. Throws as write().
  void close();

 private:
  void release() noexcept;

  at::Tensor place_;
  at::Tensor memory_;
  DiskSpot spot_;                      // has a disk where memory_ is not place_
  std::shared_ptr<std::byte> buffer_;  // likewise
  std::byte* begin_ = nullptr;         // in the buffer
  std::shared_ptr<DiskRead> read_;
};

}  // namespace fsdp
