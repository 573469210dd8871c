#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fsdp {

// One file, opened twice: past the page cache (O_DIRECT), and through it for the ends of what does not fill blocks.
struct DiskDoors {
  int direct = -1;
  int cached = -1;
};

// The system's calls; tests have others.
struct DiskCalls {
  std::function<ssize_t(int file, void* to, size_t bytes, off_t offset)> read = ::pread;
  std::function<ssize_t(int file, const void* from, size_t bytes, off_t offset)> write = ::pwrite;
};

inline constexpr int64_t kDiskBlock = 4096;  // bytes: offsets, lengths and addresses past the cache are multiples

// Reads and writes any bytes of a file that has them all, at any address: whole blocks past the cache, the rest through
// it. Interrupted and short calls go on; what the file system refuses to do past the cache goes through it. `bounce`:
// kDiskBounce bytes, aligned to a block, for addresses that are not. Returns 0 or errno.
inline constexpr int64_t kDiskBounce = int64_t{2} << 20;
int read_all(const DiskCalls& calls, DiskDoors doors, std::byte* to, int64_t bytes, int64_t offset, std::byte* bounce);
int write_all(const DiskCalls& calls, DiskDoors doors, const std::byte* from, int64_t bytes, int64_t offset,
              std::byte* bounce);

// Reads and writes of one file that threads carry out while the program computes: reads before writes, since somebody
// waits for them. A transfer that touches bytes of one under way, of which one is a write, begins after it.
// Thread-safe.
class DiskQueue {
 public:
  struct Transfer;  // one that is under way, or done

  explicit DiskQueue(DiskDoors doors, DiskCalls calls = {});
  ~DiskQueue();  // when all is done
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  // `to` must stay until wait() returned, which gives 0 or errno.
  std::shared_ptr<Transfer> read(std::byte* to, int64_t bytes, int64_t offset);
  int wait(const Transfer& transfer);
  // Keeps `from` until it is written. Returns when at most `most_behind` bytes wait to be.
  void write(std::shared_ptr<const std::byte> from, int64_t bytes, int64_t offset, int64_t most_behind);
  void finish_writes();
  // Of any kind, that touch these bytes.
  void finish_within(int64_t offset, int64_t bytes);
  // errno of a write that failed since the last call, or 0.
  int take_failure();

 private:
  struct Piece {
    std::shared_ptr<Transfer> transfer;
    int64_t begin, bytes;  // of the transfer's
  };
  void start(const std::shared_ptr<Transfer>& transfer);
  void work();
  int carry_out(const Piece& piece, std::byte* bounce) const;

  const DiskDoors doors_;
  const DiskCalls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a transfer is done
  std::condition_variable has_work_;
  std::deque<Piece> reads_, writes_;              // that no thread has taken yet
  std::list<std::shared_ptr<Transfer>> running_;  // begun and not done
  int64_t writing_bytes_ = 0;
  int failure_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fsdp
