#include "io/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>

#include "io/base/aligned_buffer.h"
#include "io/base/error.h"
#include "io/base/json.h"
#include "io/base/worker_threads.h"
#include "io/checkpoint/checkpoint_rules.h"
#include "io/safetensors/safetensors.h"

namespace fsdp::io {

namespace {

constexpr uint64_t kRangeAlignment = 64;               // bytes; what vector code likes to read
constexpr size_t kMaxFileEntries = size_t{1} << 20;    // what io::SafetensorsFile takes, padding included
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 62;  // leaves room to round up

uint64_t rounded_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

[[noreturn]] void refuse(const FlatRange& range, const std::string& detail) {
  throw Error(ErrorKind::kUsage, "[checkpoint] range " + in_quotes(range.entry_name()) + ": " + detail + ".");
}

void check_range(const FlatRange& range) {
  if (range.begin < 0 || range.end < range.begin ||
      range.bytes() / item_size(range.dtype) != static_cast<uint64_t>(range.end - range.begin)) {
    refuse(range, "got elements " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
                      ", expected 0 <= begin <= end");
  }
}

// The JSON of a safetensors header, entry by entry; offsets are relative to the first range.
class HeaderText {
 public:
  void add(const std::string& name, DType dtype, uint64_t numel, uint64_t begin, uint64_t end) {
    text_ += text_.size() > 1 ? "," : "";
    text_ += json_string(name) + R"(:{"dtype":")";
    text_.append(io::name(dtype)).append(R"(","shape":[)").append(std::to_string(numel));
    text_.append(R"(],"data_offsets":[)")
        .append(std::to_string(begin))
        .append(",")
        .append(std::to_string(end))
        .append("]}");
    ++num_entries_;
  }

  // With the length in front, and spaces behind up to a multiple of kDirectAlignment.
  std::string finish() {
    text_ += "}";
    text_.append(rounded_up(kHeaderLengthBytes + text_.size(), kDirectAlignment) - kHeaderLengthBytes - text_.size(),
                 ' ');
    if (text_.size() > kMaxHeaderBytes || num_entries_ > kMaxFileEntries) {
      throw Error(ErrorKind::kUsage, "[checkpoint] got a file of " + std::to_string(num_entries_) +
                                         " entries, expected at most 2^20 and a header of at most 100000000 bytes. "
                                         "Write larger ranges.");
    }
    const uint64_t length = text_.size();
    std::string header(kHeaderLengthBytes, '\0');
    std::memcpy(header.data(), &length, kHeaderLengthBytes);
    return header + text_;
  }

 private:
  std::string text_ = "{";
  size_t num_entries_ = 0;
};

// Bytes [begin, end) of the file: in `buffer`, or where they are already.
using ChunkSource = std::function<const void*(uint64_t begin, uint64_t end, void* buffer)>;

CheckpointFile write_chunks(FileOps& files, const std::filesystem::path& path, uint64_t num_bytes, size_t buffer_bytes,
                            int num_threads, const ChunkSource& source) {
  CheckpointFile result{
      .name = path.filename().native(), .bytes = num_bytes, .chunks = std::vector<Hash128>(num_chunks(num_bytes))};
  const std::unique_ptr<OutputFile> file = files.create(path, WriteMode::kDirect);
  file->reserve(num_bytes);
  run_workers(result.chunks.size(), num_threads, [&](WorkQueue& queue) {
    const AlignedBuffer buffer(buffer_bytes);
    while (const std::optional<size_t> chunk = queue.next()) {
      const uint64_t begin = *chunk * kChunkBytes;
      const uint64_t end = std::min(begin + kChunkBytes, num_bytes);
      const void* bytes = source(begin, end, buffer.data());
      result.chunks[*chunk] = hash128(bytes, end - begin);
      file->write_at(begin, bytes, end - begin);
    }
  });
  file->sync();
  return result;
}

}  // namespace

void copy_bytes(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

std::string FlatRange::entry_name() const {
  return name + "[" + std::to_string(begin) + ":" + std::to_string(end) + "]";
}

FileImage::FileImage(std::vector<FlatRange> ranges) : ranges_(std::move(ranges)), offsets_(ranges_.size(), 0) {
  HeaderText header;
  std::unordered_set<std::string> names;
  uint64_t position = 0;  // from the start of the first range
  int64_t num_gaps = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const FlatRange& range = ranges_[i];
    check_range(range);
    if (range.begin == range.end) continue;
    if (!names.insert(range.entry_name()).second) refuse(range, "got it twice, expected every range once");
    const uint64_t begin = rounded_up(position, kRangeAlignment);
    if (begin != position)
      header.add("pad/" + std::to_string(num_gaps++), DType::U8, begin - position, position, begin);
    if (range.bytes() > kMaxFileBytes - begin) refuse(range, "got a file of 2^62 bytes, expected fewer");
    position = begin + range.bytes();
    header.add(range.entry_name(), range.dtype, static_cast<uint64_t>(range.end - range.begin), begin, position);
    offsets_[i] = begin;
    filled_.push_back(i);
  }
  header_ = header.finish();
  for (size_t i : filled_) offsets_[i] += header_.size();
  bytes_ = header_.size() + position;
}

void FileImage::compose(std::span<const void* const> sources, uint64_t begin, uint64_t end, void* out) const {
  compose(sources, begin, end, out, copy_bytes);
}

void FileImage::compose(std::span<const void* const> sources, uint64_t begin, uint64_t end, void* out,
                        CopyBytes copy) const {
  if (sources.size() != ranges_.size() || begin > end || end > bytes_) {
    throw Error(ErrorKind::kUsage, "[checkpoint] got " + std::to_string(sources.size()) + " sources for bytes " +
                                       std::to_string(begin) + " to " + std::to_string(end) + ", expected " +
                                       std::to_string(ranges_.size()) + " sources and a file of " +
                                       std::to_string(bytes_) + " bytes.");
  }
  auto* bytes = static_cast<char*>(out);
  uint64_t done = begin;
  // Copies the part of [piece_begin, piece_begin + size) that is wanted; zeros for the gap before it.
  const auto append = [&](uint64_t piece_begin, const char* piece, uint64_t size) {
    const uint64_t from = std::clamp(piece_begin, done, end);
    const uint64_t to = std::clamp(piece_begin + size, from, end);
    std::memset(bytes + (done - begin), 0, from - done);
    if (to > from) copy(bytes + (from - begin), piece + (from - piece_begin), to - from);
    done = to;
  };
  if (begin < header_.size()) append(0, header_.data(), header_.size());
  auto next = std::upper_bound(filled_.begin(), filled_.end(), begin,
                               [&](uint64_t position, size_t i) { return position < offsets_[i]; });
  if (next != filled_.begin()) --next;  // the one that holds `begin`, or ends before it
  for (; next != filled_.end() && done < end; ++next) {
    if (offsets_[*next] + ranges_[*next].bytes() <= done) continue;
    append(offsets_[*next], static_cast<const char*>(sources[*next]), ranges_[*next].bytes());
  }
}

CheckpointFile write_image(FileOps& files, const std::filesystem::path& path, const FileImage& image,
                           std::span<const void* const> sources, int num_threads, FileImage::CopyBytes copy) {
  return write_chunks(files, path, image.bytes(), std::min(image.bytes(), kChunkBytes), num_threads,
                      [&](uint64_t begin, uint64_t end, void* buffer) {
                        image.compose(sources, begin, end, buffer, copy);
                        return buffer;
                      });
}

CheckpointFile write_image(FileOps& files, const std::filesystem::path& path, const FileImage& image,
                           const void* composed, int num_threads) {
  return write_chunks(files, path, image.bytes(), 0, num_threads,
                      [&](uint64_t begin, uint64_t, void*) { return static_cast<const char*>(composed) + begin; });
}

}  // namespace fsdp::io
