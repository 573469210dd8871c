#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/base/aligned_buffer.h"
#include "io/base/atomic_file.h"
#include "io/base/direct_input.h"
#include "io/base/dtype.h"
#include "io/base/input_file.h"

namespace fsdp::io {

// Of the format. Readers refuse longer headers.
inline constexpr uint64_t kHeaderLengthBytes = 8;  // the u64 in front of the header
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr const char* kHeaderMetadataKey = "__metadata__";

// One tensor of a safetensors file: row-major, little endian, in bytes [begin, end) of the file's data section.
struct TensorEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  uint64_t begin;
  uint64_t end;

  int64_t numel() const { return static_cast<int64_t>((end - begin) / item_size(dtype)); }
};

// Reader of one safetensors file. Nothing of an untrusted header is believed before it is checked, and nothing is read
// but what is asked for. Move-only (pointers from find() stay valid); reads are thread-safe.
// After: safetensors/src/tensor.rs (the rules), huggingface.co/blog/safetensors-security-audit.
class SafetensorsFile {
 public:
  // Opens and validates the whole header: size caps, JSON without duplicate keys, known dtypes, rank <= 8, at most 2^20
  // tensors, sizes that agree with shapes, data without holes or overlap that ends where the file ends. Tensors need
  // not be aligned to their item size: pread copies anyway. Throws Error(kModel) naming file and tensor.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  // In the order of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // The tensor of that name, or null.
  const TensorEntry* find(std::string_view name) const;
  // The "__metadata__" strings.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies elements [first_element, first_element + num_elements) of the flattened tensor to `out`, which holds
  // num_elements * item_size(entry.dtype) bytes. Throws Error(kUsage) if the range leaves the tensor, Error(kModel) if
  // the file has become shorter.
  void read(const TensorEntry& entry, int64_t first_element, int64_t num_elements, void* out) const;

  // Bytes [begin, end) of the file.
  struct Bytes {
    uint64_t begin, end;
  };
  // Those of elements [first_element, first_element + num_elements). Throws Error(kUsage) as read() does.
  Bytes bytes_of(const TensorEntry& entry, int64_t first_element, int64_t num_elements) const;
  // Reads past the page cache, where that has not got them: for much that is read once, of one tensor or of several
  // that lie side by side. Returns where in `scratch` the bytes begin, or null where read() is the better way.
  // `scratch` has room for them and 2 * kDirectAlignment bytes.
  const char* read_past_cache(Bytes bytes, const AlignedBuffer& scratch) const;

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)), direct_(file_.path()) {}
  void parse_header();
  void check_layout(uint64_t data_bytes) const;

  InputFile file_;
  DirectInput direct_;
  uint64_t data_begin_ = 0;  // where the data section starts in the file
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

// A tensor that is to be written.
struct TensorDeclaration {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Streaming writer: the header is known first, then tensors arrive in pieces and any order. Without commit() nothing
// appears under the final name. Not thread-safe.
class SafetensorsWriter {
 public:
  // Tensors are laid out by item size, largest first, then by name, so that each is aligned. Throws Error(kUsage) for
  // duplicate names, negative sizes or too many dimensions; Error(kFileSystem) if the file cannot be made.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // Writes elements [first_element, first_element + num_elements) of the flattened tensor `name`. Throws Error(kUsage)
  // for an unknown name, a range outside the tensor, or elements that were written before.
  void write(std::string_view name, int64_t first_element, int64_t num_elements, const void* data);

  // Checks that every element was written (else Error(kUsage) naming the tensor), then makes the file durable and
  // visible.
  void commit();

 private:
  struct Slot {
    TensorEntry entry;
    std::map<int64_t, int64_t> written;  // begin -> end of merged element ranges
  };
  Error usage_error(std::string_view op, std::string_view tensor, const std::string& detail) const;
  void mark_written(Slot& slot, int64_t begin, int64_t end) const;

  AtomicFile file_;
  uint64_t data_begin_ = 0;
  std::map<std::string, Slot, std::less<>> slots_;
};

}  // namespace fsdp::io
