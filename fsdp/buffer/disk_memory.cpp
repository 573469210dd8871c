#include "fsdp/buffer/disk_memory.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/base/block_signals.h"
#include "fsdp/base/check.h"
#include "fsdp/base/units.h"

namespace fsdp {

// Where a tensor is, in whole pages.
struct DiskPlace {
  std::shared_ptr<DiskMemory> disk;
  DiskMemory::Range range;

  static std::optional<DiskPlace> of(const at::Tensor& tensor);
  static std::optional<DiskPlace> of(const void* begin, int64_t bytes);
  int64_t into = 0;  // bytes from the first page's begin to the first byte
};

namespace {

// One request to the disk: long enough for its full speed, short enough that memory comes back while others wait.
constexpr int64_t kPiece = int64_t{8} << 20;
// Where tensors begin in the file. The page cache may have pages as large as that, each dirty as a whole: a change of
// one tensor through the mapping would write bytes of its neighbour as they were before a window wrote there. What lies
// between takes no room on the disk.
constexpr int64_t kLargestCachePage = int64_t{2} << 20;

int64_t page_size() {
  static const auto size = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
int64_t whole_pages(int64_t bytes) { return rounded_up(bytes, page_size()); }

// What the whole process has mapped, by first byte.
struct Mapping {
  std::weak_ptr<DiskMemory> disk;
  int64_t bytes;
  int64_t offset;
};
std::atomic<int64_t> num_mappings{0};
std::shared_mutex mappings_mutex;
std::map<const std::byte*, Mapping>& mappings() {
  static auto* table = new std::map<const std::byte*, Mapping>();  // tensors may live until the process ends
  return *table;
}

int open_nameless(const std::filesystem::path& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (folder / ".state-XXXXXX").string();
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

std::string free_space(const std::filesystem::path& folder) {
  struct statvfs space {};
  if (statvfs(folder.c_str(), &space) != 0) return "an unknown number of bytes";
  return format_bytes(static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize));
}

// What becomes of a tensor's memory when the tensor is gone.
struct Lease {
  std::shared_ptr<DiskMemory> disk;
  std::byte* begin;
  int64_t bytes;
  int64_t offset;
};

}  // namespace

DiskAccess disk_access_from_environment() {
  const char* text = std::getenv("FSDP_OFFLOAD");
  const std::string_view access = text == nullptr ? "" : text;
  FSDP_CHECK(access.empty() || access == "direct" || access == "mapped", "[offload] FSDP_OFFLOAD: got '", access,
             "', expected direct (state on a disk past the page cache, where the file system can) or mapped.");
  return access == "mapped" ? DiskAccess::kMapped : DiskAccess::kDirect;
}

std::optional<DiskPlace> DiskPlace::of(const at::Tensor& tensor) {
  if (num_mappings.load(std::memory_order_relaxed) == 0) return std::nullopt;
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.device().is_cpu() || !tensor.has_storage()) {
    return std::nullopt;
  }
  // Buffers that rest refuse to be asked for their memory in the usual way.
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto* base = static_cast<const std::byte*>(storage->_mutable_data_ptr_no_checks().get());
  if (base == nullptr) return std::nullopt;
  const auto item = static_cast<int64_t>(tensor.element_size());
  return of(base + tensor.storage_offset() * item, tensor.numel() * item);
}

std::optional<DiskPlace> DiskPlace::of(const void* memory, int64_t bytes) {
  if (num_mappings.load(std::memory_order_relaxed) == 0 || bytes == 0) return std::nullopt;
  const auto* begin = static_cast<const std::byte*>(memory);
  const std::shared_lock lock(mappings_mutex);
  auto found = mappings().upper_bound(begin);
  if (found == mappings().begin()) return std::nullopt;
  --found;
  const Mapping& mapping = found->second;
  const int64_t first = begin - found->first;
  if (first >= mapping.bytes) return std::nullopt;
  auto disk = mapping.disk.lock();
  if (!disk) return std::nullopt;
  const int64_t from = first / page_size() * page_size();
  const int64_t to = std::min(whole_pages(first + bytes), mapping.bytes);
  return DiskPlace{
      std::move(disk), {const_cast<std::byte*>(found->first) + from, to - from, mapping.offset + from}, first - from};
}

DiskMemory::DiskMemory(std::filesystem::path folder, DiskAccess access)
    : folder_(std::move(folder)), file_(open_nameless(folder_)) {
  if (file_ < 0) {
    FSDP_THROW(kFileSystem, "[offload] folder '", folder_.string(),
               "': no file can be made there: ", std::strerror(errno),
               ". Name a folder that exists, on a disk, where this user may write.");
  }
  if (access == DiskAccess::kDirect) why_mapped_ = open_queue();
  writer_ = std::thread([this] { work(); });
}

// The same nameless file again, past the cache, and through it for ends of pieces: there without reading ahead.
std::string DiskMemory::open_queue() {
  const std::string name = "/proc/self/fd/" + std::to_string(file_);
  direct_file_ = open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct_file_ < 0)
    return std::string("its file system opens no file past the page cache: ") + std::strerror(errno);
  edge_file_ = open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (edge_file_ < 0) return std::string("its file cannot be opened again: ") + std::strerror(errno);
  posix_fadvise(edge_file_, 0, 0, POSIX_FADV_RANDOM);
  if (std::string why = differing_views(); !why.empty()) return why;
  queue_ = std::make_unique<DiskQueue>(DiskDoors{direct_file_, edge_file_});
  return {};
}

// File systems promise it less clearly than they keep it: what one of mapping and direct calls wrote the other reads.
std::string DiskMemory::differing_views() {
  const int64_t bytes = std::max(kDiskBlock, page_size());
  if (fallocate(file_, 0, 0, bytes) != 0) return {};  // zeros() says what is wrong
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) return std::string("its file cannot be mapped: ") + std::strerror(errno);
  auto* mapped = static_cast<volatile unsigned char*>(memory);
  const auto buffer = buffers_->take(bytes);
  std::string why;
  for (int round = 1; round <= 4 && why.empty(); ++round) {
    mapped[round] = static_cast<unsigned char>(round);
    if (pread(direct_file_, buffer.get(), static_cast<size_t>(bytes), 0) != bytes) {
      why = std::string("its file system reads nothing past the page cache: ") + std::strerror(errno);
    } else if (buffer.get()[round] != std::byte(round)) {
      why = "its file system reads past the page cache what was there before a change";
    }
    buffer.get()[16 + round] = std::byte(round);
    if (why.empty() && pwrite(direct_file_, buffer.get(), static_cast<size_t>(bytes), 0) != bytes) {
      why = std::string("its file system writes nothing past the page cache: ") + std::strerror(errno);
    } else if (why.empty() && mapped[16 + round] != round) {
      why = "its file system does not show in a mapping what is written past the page cache";
    }
  }
  munmap(memory, static_cast<size_t>(bytes));
  if (ftruncate(file_, 0) != 0 && why.empty()) why = std::strerror(errno);
  return why;
}

DiskMemory::~DiskMemory() {
  queue_.reset();
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  writer_.join();
  for (const int file : {direct_file_, edge_file_}) {
    if (file >= 0) close(file);
  }
  close(file_);
}

int64_t DiskMemory::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  return taken_bytes_;
}

void DiskMemory::finish_writes() {
  if (queue_) queue_->finish_writes();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_.empty() && !dropping_; });
  }
  check_writes();
}

void DiskMemory::finish_windows() {
  if (queue_) queue_->finish_writes();
  check_writes();
}

void DiskMemory::check_writes() {
  int error = queue_ ? queue_->take_failure() : 0;
  {
    const std::lock_guard lock(mutex_);
    if (error == 0) error = std::exchange(failure_, 0);
  }
  if (error != 0) throw_failed_write(error);
}

void DiskMemory::throw_failed_write(int error) const {
  FSDP_THROW(kFileSystem, "[offload] folder '", folder_.string(),
             "': weights, gradients or optimizer state could not be written: ", std::strerror(error),
             ". What is in memory is no longer whole: resume from a checkpoint, on another disk.");
}

void DiskMemory::fail_read(int error) const {
  FSDP_THROW(kFileSystem, "[offload] folder '", folder_.string(),
             "': weights, gradients or optimizer state could not be read: ", std::strerror(error),
             ". Resume from a checkpoint, on another disk.");
}

at::Tensor DiskMemory::zeros(int64_t numel, at::ScalarType dtype) {
  const int64_t wanted = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (wanted == 0) return at::empty({0}, dtype);
  const int64_t bytes = whole_pages(wanted);
  int64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    offset = end_;
    end_ += rounded_up(bytes, kLargestCachePage);
    taken_bytes_ += bytes;
  }
  const auto refuse = [&](int error) {
    const std::lock_guard lock(mutex_);
    taken_bytes_ -= bytes;
    FSDP_THROW(kFileSystem, "[offload] folder '", folder_.string(), "': no room for ", format_bytes(bytes),
               " of weights, gradients or optimizer state: ", std::strerror(error), ". It has ", free_space(folder_),
               " free. Name a folder on a larger disk, or use more ranks.");
  };
  // Room that was reserved and not written reads as zeros, without the disk.
  if (fallocate(file_, 0, offset, bytes) != 0) refuse(errno);
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
  if (memory == MAP_FAILED) refuse(errno);
  auto* begin = static_cast<std::byte*>(memory);
  {
    const std::unique_lock lock(mappings_mutex);
    mappings()[begin] = {weak_from_this(), bytes, offset};
  }
  num_mappings.fetch_add(1);
  auto* lease = new Lease{shared_from_this(), begin, bytes, offset};
  return at::from_blob(
      memory, {numel}, [lease](void*) { release(lease); }, at::device(at::kCPU).dtype(dtype));
}

void DiskMemory::release(void* context) {
  const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
  lease->disk->give_back(lease->begin, lease->bytes, lease->offset);
}

void DiskMemory::give_back(std::byte* begin, int64_t bytes, int64_t offset) {
  {
    const std::unique_lock lock(mappings_mutex);
    mappings().erase(begin);
  }
  num_mappings.fetch_sub(1);
  if (queue_) queue_->finish_within(offset, bytes);
  {
    // The writer must not drop pages of whoever gets these addresses next.
    std::unique_lock lock(mutex_);
    const auto is_inside = [&](const Range& range) { return range.begin >= begin && range.begin < begin + bytes; };
    for (const Range& range : waiting_) {
      if (is_inside(range)) waiting_bytes_ -= range.bytes;
    }
    std::erase_if(waiting_, is_inside);
    changed_.wait(lock, [&] { return !dropping_ || !is_inside(*dropping_); });
    taken_bytes_ -= bytes;
  }
  changed_.notify_all();
  munmap(begin, static_cast<size_t>(bytes));
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

void DiskMemory::write_behind(const Range& range) {
  // Starts now, so that the disk has work while earlier pieces are waited for.
  sync_file_range(file_, range.offset, range.bytes, SYNC_FILE_RANGE_WRITE);
  std::unique_lock lock(mutex_);
  for (int64_t done = 0; done < range.bytes; done += kPiece) {
    const int64_t bytes = std::min(kPiece, range.bytes - done);
    waiting_.push_back({range.begin + done, bytes, range.offset + done});
    waiting_bytes_ += bytes;
  }
  changed_.notify_all();
  changed_.wait(lock, [&] { return waiting_bytes_ <= kMostBehind; });
  if (const int error = std::exchange(failure_, 0)) throw_failed_write(error);
}

void DiskMemory::work() {
  block_signals();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    dropping_ = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    drop(*dropping_);
    lock.lock();
    waiting_bytes_ -= dropping_->bytes;
    dropping_.reset();
    changed_.notify_all();
  }
}

// Whoever touches a page meanwhile finds it, or has it brought again: nothing is lost by dropping what was written.
void DiskMemory::drop(const Range& range) {
  constexpr unsigned kAndWait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  madvise(range.begin, static_cast<size_t>(range.bytes), MADV_DONTNEED);  // of a shared mapping: only unmapped
  if (sync_file_range(file_, range.offset, range.bytes, kAndWait) != 0 && errno != ESPIPE && errno != ENOSYS) {
    const int error = errno;
    const std::lock_guard lock(mutex_);
    failure_ = error;
  }
  posix_fadvise(file_, range.offset, range.bytes, POSIX_FADV_DONTNEED);
}

std::optional<DiskSpot> find_on_disk(const at::Tensor& tensor) {
  auto place = DiskPlace::of(tensor);
  if (!place || !tensor.is_contiguous()) return std::nullopt;
  return DiskSpot{std::move(place->disk), place->range.offset + place->into, static_cast<int64_t>(tensor.nbytes())};
}

bool is_on_disk(const at::Tensor& tensor) { return DiskPlace::of(tensor).has_value(); }

void read_ahead(const at::Tensor& tensor) noexcept {
  const auto place = DiskPlace::of(tensor);
  if (place) madvise(place->range.begin, static_cast<size_t>(place->range.bytes), MADV_WILLNEED);
}

void write_behind(const at::Tensor& tensor) {
  if (const auto place = DiskPlace::of(tensor)) write_behind(place->range.begin, place->range.bytes);
}

void write_behind(const void* begin, int64_t bytes) {
  if (const auto place = DiskPlace::of(begin, bytes)) place->disk->write_behind(place->range);
}

void forget_content(const at::Tensor& tensor) noexcept {
  const auto place = DiskPlace::of(tensor);
  if (place) fallocate(place->disk->file_, FALLOC_FL_ZERO_RANGE, place->range.offset, place->range.bytes);
}

int64_t bytes_in_memory(const at::Tensor& tensor) {
  const auto place = DiskPlace::of(tensor);
  if (!place) return static_cast<int64_t>(tensor.nbytes());
  std::vector<unsigned char> pages(static_cast<size_t>(place->range.bytes / page_size()));
  if (mincore(place->range.begin, static_cast<size_t>(place->range.bytes), pages.data()) != 0) return 0;
  return page_size() * std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace fsdp
