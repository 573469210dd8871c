#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "io/base/aligned_buffer.h"
#include "io/base/direct_input.h"
#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/base/worker_threads.h"
#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_rules.h"

namespace fsdp::io {

namespace {

// A file of the checkpoint, of the size that the manifest says, or Error(kModel).
InputFile open_whole(const std::filesystem::path& folder, const CheckpointFile& entry) {
  try {
    InputFile file(folder / entry.name, ErrorKind::kModel);
    if (file.size() == entry.bytes) return file;
    throw file.error("checkpoint", "got " + std::to_string(file.size()) + " bytes, expected " +
                                       std::to_string(entry.bytes) + ". The file is truncated or damaged.");
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::kModel) throw;
    throw Error(ErrorKind::kModel, failure.what() + std::string(kChooseAnother));
  }
}

// Reads chunks past the page cache where they are not in it and the file system can: a checkpoint is read once, in
// large pieces. A small file is as likely in the cache already, and not worth the trip.
constexpr uint64_t kMinDirectFileBytes = uint64_t{1} << 20;

// Of a chunk that is wanted in part the rest is most likely wanted by another rank of this host, which then finds it in
// the page cache.
enum class Way { kPastCache, kThroughCache };

class ChunkReader {
 public:
  ChunkReader(const std::filesystem::path& folder, const CheckpointFile& entry)
      : file_(open_whole(folder, entry)),
        entry_(entry),
        direct_(entry.bytes < kMinDirectFileBytes ? std::nullopt : std::optional<DirectInput>(file_.path())) {}

  // Reads the whole chunk and checks its hash. `out` has room for it, rounded up to kDirectAlignment if it is aligned.
  void read(uint64_t chunk, Way way, char* out) {
    const uint64_t begin = chunk * kChunkBytes;
    const uint64_t size = std::min(kChunkBytes, entry_.bytes - begin);
    try {
      const bool past_cache = way == Way::kPastCache && direct_ && !file_.is_cached(begin, size);
      if (!past_cache || !direct_->read(begin, size, out)) file_.read_at(begin, out, size);
    } catch (const Error& failure) {  // a disk that cannot read it back has damaged it too
      throw Error(ErrorKind::kModel, failure.what() + std::string(kChooseAnother));
    }
    const Hash128 found = hash128(out, size);
    if (found == entry_.chunks[chunk]) return;
    throw file_.error("checkpoint", "got the hash " + hash_text(found) + " of chunk " + std::to_string(chunk) +
                                        " (bytes " + std::to_string(begin) + " to " + std::to_string(begin + size) +
                                        "), expected " + hash_text(entry_.chunks[chunk]) + ". The file is damaged." +
                                        kChooseAnother);
  }

 private:
  InputFile file_;
  const CheckpointFile& entry_;
  std::optional<DirectInput> direct_;
};

// Range number `range` wants bytes of that chunk.
struct Touch {
  uint32_t file;
  uint64_t chunk;
  size_t range;

  bool same_chunk(const Touch& other) const { return file == other.file && chunk == other.chunk; }
};

void check_range(const CheckpointManifest& manifest, const ReadRange& range) {
  const uint64_t size = range.file < manifest.files.size() ? manifest.files[range.file].bytes : 0;
  if (range.file < manifest.files.size() && range.bytes <= size && range.offset <= size - range.bytes) return;
  throw Error(ErrorKind::kUsage, "[checkpoint] got a read of bytes " + std::to_string(range.offset) + " + " +
                                     std::to_string(range.bytes) + " of file number " + std::to_string(range.file) +
                                     ", expected a range inside its " + std::to_string(size) + " bytes.");
}

// Sorted by place in the files.
std::vector<Touch> touches_of(const CheckpointManifest& manifest, const std::vector<ReadRange>& ranges) {
  std::vector<Touch> touches;
  for (size_t i = 0; i < ranges.size(); ++i) {
    check_range(manifest, ranges[i]);
    if (ranges[i].bytes == 0) continue;
    const uint64_t last = (ranges[i].offset + ranges[i].bytes - 1) / kChunkBytes;
    for (uint64_t chunk = ranges[i].offset / kChunkBytes; chunk <= last; ++chunk) {
      touches.push_back({ranges[i].file, chunk, i});
    }
  }
  std::sort(touches.begin(), touches.end(), [](const Touch& a, const Touch& b) {
    return std::tie(a.file, a.chunk, a.range) < std::tie(b.file, b.chunk, b.range);
  });
  return touches;
}

// The bytes of a chunk that a range wants, as places in the file.
struct Wanted {
  uint64_t begin, end;

  Wanted(const ReadRange& range, uint64_t chunk)
      : begin(std::max(range.offset, chunk * kChunkBytes)),
        end(std::min(range.offset + range.bytes, (chunk + 1) * kChunkBytes)) {}
};

void copy_wanted(const ReadRange& range, uint64_t chunk, const char* bytes) {
  const Wanted wanted(range, chunk);
  std::memcpy(static_cast<char*>(range.out) + (wanted.begin - range.offset),
              bytes + (wanted.begin - chunk * kChunkBytes), wanted.end - wanted.begin);
}

// `touches` are those of one chunk.
Way way_for(std::span<const Touch> touches, const CheckpointManifest& manifest, const std::vector<ReadRange>& ranges) {
  constexpr uint64_t kMostSpared = 8;  // an eighth of a chunk: what ranks that read on their own may read too much
  const Touch& first = touches.front();
  const uint64_t size = std::min(kChunkBytes, manifest.files[first.file].bytes - first.chunk * kChunkBytes);
  uint64_t bytes = 0;
  for (const Touch& touch : touches) {
    const Wanted wanted(ranges[touch.range], touch.chunk);
    bytes += wanted.end - wanted.begin;
  }
  return bytes + size / kMostSpared >= size ? Way::kPastCache : Way::kThroughCache;
}

// One worker's open file; chunks come in the order of the files, so it changes rarely.
class FolderReader {
 public:
  FolderReader(const std::filesystem::path& folder, const CheckpointManifest& manifest)
      : folder_(folder), manifest_(manifest) {}

  ChunkReader& file(uint32_t index) {
    if (reader_ == nullptr || index_ != index) {
      reader_ = std::make_unique<ChunkReader>(folder_, manifest_.files[index]);
      index_ = index;
    }
    return *reader_;
  }

 private:
  const std::filesystem::path& folder_;
  const CheckpointManifest& manifest_;
  std::unique_ptr<ChunkReader> reader_;
  uint32_t index_ = 0;
};

}  // namespace

void read_ranges(const std::filesystem::path& folder, const CheckpointManifest& manifest, std::vector<ReadRange> ranges,
                 int num_threads) {
  const std::vector<Touch> touches = touches_of(manifest, ranges);
  std::vector<size_t> starts;  // where the touches of one chunk begin
  uint64_t buffer_bytes = 0;
  for (size_t i = 0; i < touches.size(); ++i) {
    if (i > 0 && touches[i].same_chunk(touches[i - 1])) continue;
    const CheckpointFile& entry = manifest.files[touches[i].file];
    if (i == 0 || touches[i].file != touches[i - 1].file) open_whole(folder, entry);
    starts.push_back(i);
    buffer_bytes = std::max(buffer_bytes, std::min(kChunkBytes, entry.bytes));
  }
  starts.push_back(touches.size());
  run_workers(starts.size() - 1, num_threads, [&](WorkQueue& queue) {
    const AlignedBuffer buffer(buffer_bytes);
    FolderReader reader(folder, manifest);
    while (const std::optional<size_t> item = queue.next()) {
      const std::span<const Touch> of_chunk(touches.data() + starts[*item], touches.data() + starts[*item + 1]);
      const Touch& first = of_chunk.front();
      reader.file(first.file).read(first.chunk, way_for(of_chunk, manifest, ranges), buffer.data());
      for (const Touch& touch : of_chunk) copy_wanted(ranges[touch.range], touch.chunk, buffer.data());
    }
  });
}

void verify_chunks(const std::filesystem::path& folder, const CheckpointManifest& manifest, int part_index,
                   int num_parts, int num_threads, const std::function<void(uint64_t bytes)>& checked) {
  if (num_parts < 1 || part_index < 0 || part_index >= num_parts) {
    throw Error(ErrorKind::kUsage, "[checkpoint] got part " + std::to_string(part_index) + " of " +
                                       std::to_string(num_parts) + ", expected a part from 0 to below their number.");
  }
  struct Chunk {
    uint32_t file;
    uint64_t chunk;
  };
  std::vector<Chunk> chunks;
  uint64_t number = 0;
  uint64_t buffer_bytes = 0;
  for (uint32_t file = 0; file < manifest.files.size(); ++file) {
    open_whole(folder, manifest.files[file]);
    buffer_bytes = std::max(buffer_bytes, std::min(kChunkBytes, manifest.files[file].bytes));
    for (uint64_t chunk = 0; chunk < manifest.files[file].chunks.size(); ++chunk, ++number) {
      if (number % static_cast<uint64_t>(num_parts) == static_cast<uint64_t>(part_index))
        chunks.push_back({file, chunk});
    }
  }
  run_workers(chunks.size(), num_threads, [&](WorkQueue& queue) {
    const AlignedBuffer buffer(buffer_bytes);
    FolderReader reader(folder, manifest);
    while (const std::optional<size_t> item = queue.next()) {
      const auto [file, chunk] = chunks[*item];
      reader.file(file).read(chunk, Way::kPastCache, buffer.data());
      if (checked) checked(std::min(kChunkBytes, manifest.files[file].bytes - chunk * kChunkBytes));
    }
  });
}

}  // namespace fsdp::io
