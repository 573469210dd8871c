#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fsdp/buffer/disk_buffers.h"
#include "fsdp/buffer/disk_queue.h"

namespace fsdp {

// How those who pass over the state reach it. Others always have the mapping.
enum class DiskAccess {
  kDirect,  // through memory of their own, past the page cache, where the file system can; else as kMapped
  kMapped,  // through the mapping, whose window they move
};
// What the variable FSDP_OFFLOAD says, "direct" or "mapped"; without it kDirect. Throws Error(kUsage).
DiskAccess disk_access_from_environment();

// Memory whose content is in a file: tensors with ordinary addresses, for state that is larger than memory. The file
// has no name and goes with the process, however that ends; what is to survive goes into a checkpoint.
// [Note: A mapping whose window we move] A read or write of any part at any time is right, whoever does it: the system
// brings the page. What bounds memory is that those who pass over the state say where they are: read_ahead() of what
// comes, write_behind() of what they have done with. Pages that nobody told of are the system's to drop when memory is
// short; a limit of a control group holds for all. Faster is a DiskWindow (disk_window.h), which the system keeps in
// step with the mapping once it is written: finish_windows() before a program may look at the mapping again. Blocks of
// the file are reserved when memory is taken, so a disk that is full is an error there and never a signal later. A disk
// that fails to read is a signal (SIGBUS). Thread-safe.
class DiskMemory : public std::enable_shared_from_this<DiskMemory> {
 public:
  // A file in `folder`, which must exist. Throws Error(kFileSystem).
  explicit DiskMemory(std::filesystem::path folder, DiskAccess access = DiskAccess::kDirect);
  ~DiskMemory();
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  // [numel], of zeros, on the CPU; the file keeps room for it as long as the tensor lives. Throws Error(kFileSystem)
  // naming the folder: the disk is full, or its file system cannot reserve room.
  at::Tensor zeros(int64_t numel, at::ScalarType dtype);
  const std::filesystem::path& folder() const { return folder_; }
  int64_t taken_bytes() const;
  // Returns when nothing waits to be written. Throws Error(kFileSystem) if a write failed.
  void finish_writes();
  // Returns when what windows wrote is what the tensors hold. Throws as finish_writes().
  void finish_windows();

  // Null for kMapped, and where the file system cannot do better: why_mapped() says why.
  DiskQueue* queue() const { return queue_.get(); }
  const std::string& why_mapped() const { return why_mapped_; }
  DiskBuffers& buffers() const { return *buffers_; }
  // Throws Error(kFileSystem) if a write failed since the last call.
  void check_writes();
  [[noreturn]] void fail_read(int error) const;

 private:
  friend struct DiskPlace;
  friend void write_behind(const void* begin, int64_t bytes);
  friend void forget_content(const at::Tensor& tensor) noexcept;
  struct Range {
    std::byte* begin = nullptr;
    int64_t bytes = 0;
    int64_t offset = 0;  // in the file
  };
  std::string open_queue();  // why not, or nothing
  std::string differing_views();
  void throw_failed_write(int error) const;
  static void release(void* context);
  void give_back(std::byte* begin, int64_t bytes, int64_t offset);
  void write_behind(const Range& range);
  void work();
  void drop(const Range& range);

  std::filesystem::path folder_;
  int file_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Range> waiting_;  // to be written and dropped, oldest first
  std::optional<Range> dropping_;
  int64_t waiting_bytes_ = 0;
  int64_t end_ = 0;  // of the file
  int64_t taken_bytes_ = 0;
  int failure_ = 0;  // errno of a write that nobody heard of yet
  bool is_over_ = false;
  std::thread writer_;
  std::string why_mapped_;
  std::shared_ptr<DiskBuffers> buffers_ = std::make_shared<DiskBuffers>();
  int direct_file_ = -1, edge_file_ = -1;
  std::unique_ptr<DiskQueue> queue_;
};

// Bytes of a tensor, in its file.
struct DiskSpot {
  std::shared_ptr<DiskMemory> disk;
  int64_t offset = 0;
  int64_t bytes = 0;
};
// Nothing for a tensor that is not on a disk, or not contiguous.
std::optional<DiskSpot> find_on_disk(const at::Tensor& tensor);

// Of any tensor, contiguous; nothing happens to one that is not on a disk.
bool is_on_disk(const at::Tensor& tensor);
// It will be read soon: starts to bring it, and returns.
void read_ahead(const at::Tensor& tensor) noexcept;
// Nobody needs it for a while: a thread writes what changed and gives the memory back. Returns at once, or, where the
// disk is slower than the program, when no more than kMostBehind wait. Throws Error(kFileSystem) if an earlier write
// failed.
inline constexpr int64_t kMostBehind = int64_t{32} << 20;
void write_behind(const at::Tensor& tensor);
void write_behind(const void* begin, int64_t bytes);
// What is in it is needed no more, and all of it will be written: it is not read from the disk for that.
void forget_content(const at::Tensor& tensor) noexcept;
// Bytes of it that are in memory now, by pages; all of it for a tensor that is not on a disk.
int64_t bytes_in_memory(const at::Tensor& tensor);

}  // namespace fsdp
