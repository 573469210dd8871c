#include "fsdp/buffer/disk_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/base/block_signals.h"
#include "fsdp/buffer/disk_buffers.h"

namespace fsdp {
namespace {

// One request: long enough for the disk's full speed, short enough that several threads share a transfer.
constexpr int64_t kDiskRequest = int64_t{4} << 20;
// Two keep a disk busy while one of them copies; more were no faster.
constexpr int kDiskThreads = 2;

int64_t block_above(int64_t offset) { return (offset + kDiskBlock - 1) / kDiskBlock * kDiskBlock; }
int64_t block_below(int64_t offset) { return offset / kDiskBlock * kDiskBlock; }
bool is_aligned(const std::byte* address) { return reinterpret_cast<uintptr_t>(address) % kDiskBlock == 0; }

// call(done) for what is left until `bytes` are done. A whole number of blocks past the cache: `step`, else 1.
template <class Call>
int repeat(int64_t bytes, int64_t step, int64_t& done, const Call& call) {
  while (done < bytes) {
    const ssize_t got = call(done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    const int64_t whole = got / step * step;
    if (whole == 0) return got == 0 ? EIO : EINVAL;  // the file ends, though it has room for all; or no whole block
    done += whole;
  }
  return 0;
}

int read_cached(const DiskCalls& calls, int file, std::byte* to, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  return repeat(bytes, 1, done,
                [&](int64_t at) { return calls.read(file, to + at, static_cast<size_t>(bytes - at), offset + at); });
}

int write_cached(const DiskCalls& calls, int file, const std::byte* from, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  return repeat(bytes, 1, done,
                [&](int64_t at) { return calls.write(file, from + at, static_cast<size_t>(bytes - at), offset + at); });
}

// Whole blocks. EINVAL is how file systems say that they cannot.
int read_blocks(const DiskCalls& calls, DiskDoors doors, std::byte* to, int64_t bytes, int64_t offset,
                std::byte* bounce) {
  const bool bounces = !is_aligned(to);
  int64_t done = 0;
  const int error = repeat(bytes, kDiskBlock, done, [&](int64_t at) {
    const int64_t left = bounces ? std::min(kDiskBounce, bytes - at) : bytes - at;
    const ssize_t got = calls.read(doors.direct, bounces ? bounce : to + at, static_cast<size_t>(left), offset + at);
    if (bounces && got > 0) std::memcpy(to + at, bounce, static_cast<size_t>(got));
    return got;
  });
  return error == EINVAL ? read_cached(calls, doors.cached, to + done, bytes - done, offset + done) : error;
}

int write_blocks(const DiskCalls& calls, DiskDoors doors, const std::byte* from, int64_t bytes, int64_t offset,
                 std::byte* bounce) {
  const bool bounces = !is_aligned(from);
  int64_t done = 0;
  const int error = repeat(bytes, kDiskBlock, done, [&](int64_t at) {
    const int64_t left = bounces ? std::min(kDiskBounce, bytes - at) : bytes - at;
    if (bounces) std::memcpy(bounce, from + at, static_cast<size_t>(left));
    return calls.write(doors.direct, bounces ? bounce : from + at, static_cast<size_t>(left), offset + at);
  });
  return error == EINVAL ? write_cached(calls, doors.cached, from + done, bytes - done, offset + done) : error;
}

// Calls ends(begin, bytes) for what fills no block and blocks(begin, bytes) for what does, of [offset, offset + bytes);
// begins count from `offset`. Returns the first error.
template <class Ends, class Blocks>
int in_parts(int64_t bytes, int64_t offset, const Ends& ends, const Blocks& blocks) {
  const int64_t first = block_above(offset) - offset, last = block_below(offset + bytes) - offset;
  if (first >= last) return ends(0, bytes);
  int error = first > 0 ? ends(0, first) : 0;
  if (error == 0) error = blocks(first, last - first);
  return error == 0 && last < bytes ? ends(last, bytes - last) : error;
}

}  // namespace

int read_all(const DiskCalls& calls, DiskDoors doors, std::byte* to, int64_t bytes, int64_t offset, std::byte* bounce) {
  return in_parts(
      bytes, offset,
      [&](int64_t begin, int64_t n) { return read_cached(calls, doors.cached, to + begin, n, offset + begin); },
      [&](int64_t begin, int64_t n) { return read_blocks(calls, doors, to + begin, n, offset + begin, bounce); });
}

int write_all(const DiskCalls& calls, DiskDoors doors, const std::byte* from, int64_t bytes, int64_t offset,
              std::byte* bounce) {
  return in_parts(
      bytes, offset,
      [&](int64_t begin, int64_t n) { return write_cached(calls, doors.cached, from + begin, n, offset + begin); },
      [&](int64_t begin, int64_t n) { return write_blocks(calls, doors, from + begin, n, offset + begin, bounce); });
}

struct DiskQueue::Transfer {
  std::byte* to;                          // of a read
  std::shared_ptr<const std::byte> from;  // of a write
  int64_t bytes, offset;
  int64_t left;  // bytes
  int error = 0;

  bool is_write() const { return from != nullptr; }
  bool touches(int64_t begin, int64_t size) const { return offset < begin + size && begin < offset + bytes; }
};

DiskQueue::DiskQueue(DiskDoors doors, DiskCalls calls) : doors_(doors), calls_(std::move(calls)) {
  for (int i = 0; i < kDiskThreads; ++i) threads_.emplace_back([this] { work(); });
}

DiskQueue::~DiskQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<DiskQueue::Transfer> DiskQueue::read(std::byte* to, int64_t bytes, int64_t offset) {
  auto transfer = std::make_shared<Transfer>(Transfer{to, nullptr, bytes, offset, bytes});
  start(transfer);
  return transfer;
}

void DiskQueue::write(std::shared_ptr<const std::byte> from, int64_t bytes, int64_t offset, int64_t most_behind) {
  start(std::make_shared<Transfer>(Transfer{nullptr, std::move(from), bytes, offset, bytes}));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return writing_bytes_ <= most_behind; });
}

void DiskQueue::start(const std::shared_ptr<Transfer>& transfer) {
  if (transfer->bytes == 0) return;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::none_of(running_.begin(), running_.end(), [&](const auto& other) {
        return (transfer->is_write() || other->is_write()) && other->touches(transfer->offset, transfer->bytes);
      });
    });
    running_.push_back(transfer);
    if (transfer->is_write()) writing_bytes_ += transfer->bytes;
    auto& pieces = transfer->is_write() ? writes_ : reads_;
    for (int64_t begin = 0; begin < transfer->bytes;) {
      // Cut where blocks begin, so that no other end goes through the cache.
      const int64_t end = block_below(transfer->offset + begin + kDiskRequest) - transfer->offset;
      const int64_t bytes = std::min(end, transfer->bytes) - begin;
      pieces.push_back({transfer, begin, bytes});
      begin += bytes;
    }
  }
  has_work_.notify_all();
}

int DiskQueue::wait(const Transfer& transfer) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return transfer.left == 0; });
  return transfer.error;
}

void DiskQueue::finish_writes() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return writing_bytes_ == 0; });
}

void DiskQueue::finish_within(int64_t offset, int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::none_of(running_.begin(), running_.end(),
                        [&](const auto& other) { return other->touches(offset, bytes); });
  });
}

int DiskQueue::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, 0);
}

int DiskQueue::carry_out(const Piece& piece, std::byte* bounce) const {
  const Transfer& transfer = *piece.transfer;
  const int64_t offset = transfer.offset + piece.begin;
  return transfer.is_write() ? write_all(calls_, doors_, transfer.from.get() + piece.begin, piece.bytes, offset, bounce)
                             : read_all(calls_, doors_, transfer.to + piece.begin, piece.bytes, offset, bounce);
}

void DiskQueue::work() {
  block_signals();
  const std::shared_ptr<std::byte> bounce = std::make_shared<DiskBuffers>()->take(kDiskBounce);
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] { return is_over_ || !reads_.empty() || !writes_.empty(); });
    auto& pieces = reads_.empty() ? writes_ : reads_;
    if (pieces.empty()) return;
    Piece piece = std::move(pieces.front());
    pieces.pop_front();
    lock.unlock();
    const int error = carry_out(piece, bounce.get());
    lock.lock();
    Transfer& transfer = *piece.transfer;
    if (transfer.error == 0) transfer.error = error;
    transfer.left -= piece.bytes;
    if (transfer.left > 0) continue;
    if (transfer.is_write()) {
      writing_bytes_ -= transfer.bytes;
      if (failure_ == 0) failure_ = transfer.error;
    }
    running_.remove(piece.transfer);
    lock.unlock();
    changed_.notify_all();
    piece = {};  // and what was written, whose memory goes back
    lock.lock();
  }
}

}  // namespace fsdp
