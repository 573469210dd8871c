#include "benchmarks/support/raw_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/base/aligned_buffer.h"

namespace fsdp::benchmarks {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPiece = int64_t{16} << 20;
constexpr int64_t kAlignment = 4096;
constexpr int64_t kSource = 16 * kPiece;  // what is written again and again: more than a cache holds

[[noreturn]] void fail(const char* what, const fs::path& path) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path.string());
}

class File {
 public:
  File(const fs::path& path, int flags) : path_(path), number_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (number_ < 0) fail("open", path);
  }
  ~File() { ::close(number_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int number() const { return number_; }

  void write(const char* data, int64_t bytes, int64_t offset) const {
    while (bytes > 0) {
      const ssize_t done = ::pwrite(number_, data, static_cast<size_t>(bytes), offset);
      if (done <= 0) fail("write", path_);
      data += done, bytes -= done, offset += done;
    }
  }
  void read(char* out, int64_t bytes, int64_t offset) const {
    while (bytes > 0) {
      // Whole pages, of which the last may end behind the file.
      const int64_t asked = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      const ssize_t done = ::pread(number_, out, static_cast<size_t>(asked), offset);
      if (done <= 0) fail("read", path_);
      out += done, bytes -= done, offset += done;
    }
  }

 private:
  fs::path path_;
  int number_;
};

// Calls piece(thread, begin) for every multiple of kPiece below `bytes`.
void for_each_piece(int64_t bytes, int threads, const std::function<void(int, int64_t)>& piece) {
  std::atomic<int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](int thread) {
    try {
      for (int64_t begin = next.fetch_add(kPiece); begin < bytes; begin = next.fetch_add(kPiece)) piece(thread, begin);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

const char* random_source() {
  static const io::AlignedBuffer source = [] {
    io::AlignedBuffer memory(kSource);
    fill_random(reinterpret_cast<float*>(memory.data()), kSource / 4, static_cast<uint64_t>(::getpid()));
    return memory;
  }();
  return source.data();
}

template <class Action>
void for_each_file(const fs::path& folder, const Action& action) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) action(entry.path());
  }
}

}  // namespace

void write_raw(const fs::path& path, int64_t bytes, const RawAccess& access) {
  const char* source = random_source();
  const File file(path, O_WRONLY | O_CREAT | O_EXCL | (access.direct ? O_DIRECT : 0));
  if (access.reserved && ::fallocate(file.number(), 0, 0, bytes) != 0) fail("fallocate", path);
  for_each_piece(bytes, access.threads, [&](int, int64_t begin) {
    // The last piece is rounded up: only whole pages go past the cache.
    const int64_t size = std::min(kPiece, (bytes - begin + kAlignment - 1) / kAlignment * kAlignment);
    file.write(source + begin % kSource, size, begin);
  });
  if (::fsync(file.number()) != 0) fail("fsync", path);
}

void read_raw(const fs::path& path, const RawAccess& access) { read_raw_part(path, access, 0, 1); }

void read_raw_part(const fs::path& path, const RawAccess& access, int part, int parts) {
  const File file(path, O_RDONLY | (access.direct ? O_DIRECT : 0));
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  const int64_t first = pieces * part / parts * kPiece;
  const int64_t last = std::min(bytes, pieces * (part + 1) / parts * kPiece);
  std::vector<io::AlignedBuffer> buffers;
  for (int thread = 0; thread < access.threads; ++thread) buffers.emplace_back(kPiece);
  for_each_piece(last - first, access.threads, [&](int thread, int64_t begin) {
    file.read(buffers[static_cast<size_t>(thread)].data(), std::min(kPiece, last - first - begin), first + begin);
  });
}

void mix_raw(const fs::path& path, int64_t read, int64_t written, const RawAccess& access) {
  const char* source = random_source();
  const File file(path, O_RDWR | (access.direct ? O_DIRECT : 0));
  const int64_t places = std::max<int64_t>(1, static_cast<int64_t>(fs::file_size(path)) / kPiece);
  const int64_t pieces = (read + written + kPiece - 1) / kPiece;
  const int64_t writes = (written + kPiece - 1) / kPiece;
  std::vector<io::AlignedBuffer> buffers;
  for (int thread = 0; thread < access.threads; ++thread) buffers.emplace_back(kPiece);
  for_each_piece(read + written, access.threads, [&](int thread, int64_t begin) {
    const int64_t i = begin / kPiece;
    const int64_t offset = i % places * kPiece;
    const int64_t bytes = std::min(kPiece, (read + written - begin) / kAlignment * kAlignment);
    if (i * writes / pieces != (i + 1) * writes / pieces) {
      file.write(source + begin % kSource, bytes, offset);
    } else {
      file.read(buffers[static_cast<size_t>(thread)].data(), bytes, offset);
    }
  });
}

void drop_from_cache(const fs::path& folder) {
  for_each_file(folder, [](const fs::path& path) {
    const File file(path, O_RDONLY);
    ::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
  });
}

void bring_into_cache(const fs::path& folder) {
  for_each_file(folder, [](const fs::path& path) { read_raw(path, {.threads = 1, .direct = false}); });
}

// Random bits of the fraction under a fixed exponent: splitmix64.
void fill_random(float* out, int64_t numel, uint64_t seed) {
  for (int64_t i = 0; i < numel; ++i) {
    uint64_t z = seed + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    out[i] = std::bit_cast<float>(0x3c000000U | static_cast<uint32_t>(z >> 41));
  }
}

}  // namespace fsdp::benchmarks
