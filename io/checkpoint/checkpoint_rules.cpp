#include "io/checkpoint/checkpoint_rules.h"

#include <limits>
#include <string>
#include <unordered_set>
#include <vector>

namespace fsdp::io {

namespace {

constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

class Checker {
 public:
  Checker(const CheckpointManifest& manifest, std::string_view origin, ErrorKind kind)
      : manifest_(manifest), origin_(origin), kind_(kind) {}

  void check() const {
    if (manifest_.step < 0) fail("", "got step " + std::to_string(manifest_.step) + ", expected 0 or more");
    if (manifest_.world_size < 1) {
      fail("", "got world_size " + std::to_string(manifest_.world_size) + ", expected 1 or more");
    }
    if (manifest_.world_size > static_cast<int64_t>(kMaxCheckpointEntries)) {
      fail("", "got world_size " + std::to_string(manifest_.world_size) + ", expected at most 2^20");
    }
    if (!manifest_.values.is_object()) fail("", "got \"values\" that is no object, expected one");
    check_count("files", manifest_.files.size());
    check_count("tensors", manifest_.tensors.size());
    check_files();
    const CheckpointTensor* previous = nullptr;
    for (const CheckpointTensor& tensor : manifest_.tensors) {
      check_tensor(tensor, previous);
      previous = &tensor;
    }
    check_sums();
  }

 private:
  [[noreturn]] void fail(const std::string& where, const std::string& detail) const {
    const char* advice = kind_ == ErrorKind::kUsage ? " Repair the writer." : kChooseAnother;
    throw Error(kind_, "[manifest] " + in_quotes(origin_) + ": " + where + detail + "." + advice);
  }

  void check_count(const char* what, size_t count) const {
    if (count <= kMaxCheckpointEntries) return;
    fail("", "got " + std::to_string(count) + " " + what + ", expected at most 2^20");
  }

  void check_files() const {
    std::unordered_set<std::string_view> names;
    for (const CheckpointFile& file : manifest_.files) {
      const std::string where = "file " + in_quotes(file.name) + ": ";
      if (!is_plain_file_name(file.name) || file.name.front() == '.' || file.name == kManifestName) {
        fail(where, "got a name that is not plain, expected one without folders that does not start with '.'");
      }
      if (!names.insert(file.name).second) fail(where, "got the name twice, expected different names");
      if (file.bytes > kMaxBytes) {
        fail(where, "got " + std::to_string(file.bytes) + " bytes, expected fewer than 2^63");
      }
      if (file.chunks.size() != num_chunks(file.bytes)) {
        fail(where, "got hashes of " + std::to_string(file.chunks.size()) + " chunks, expected " +
                        std::to_string(num_chunks(file.bytes)) + " for " + std::to_string(file.bytes) + " bytes");
      }
    }
  }

  void check_tensor(const CheckpointTensor& tensor, const CheckpointTensor* previous) const {
    const std::string where = "tensor " + in_quotes(tensor.name) + ": ";
    if (tensor.name.empty()) fail(where, "got an empty name, expected one");
    if (previous != nullptr && tensor.name <= previous->name) {
      fail(where, "got it after " + in_quotes(previous->name) + ", expected tensors sorted by name, each once");
    }
    const int64_t numel = checked_numel(tensor, where);
    int64_t done = 0;
    for (const CheckpointPart& part : tensor.parts) {
      if (part.begin != done || part.end <= part.begin || part.end > numel) {
        fail(where, "got a part of elements " + std::to_string(part.begin) + " to " + std::to_string(part.end) +
                        ", expected it to start at " + std::to_string(done) + " and to end after that, by " +
                        std::to_string(numel));
      }
      check_place(tensor, part, where);
      done = part.end;
    }
    if (done != numel) {
      fail(where, "got parts of " + std::to_string(done) + " elements, expected all " + std::to_string(numel) +
                      " of its shape");
    }
  }

  int64_t checked_numel(const CheckpointTensor& tensor, const std::string& where) const {
    if (tensor.shape.size() > kMaxCheckpointRank) {
      fail(where, "got " + std::to_string(tensor.shape.size()) + " dimensions, expected at most 8");
    }
    auto bytes = static_cast<int64_t>(item_size(tensor.dtype));
    for (int64_t size : tensor.shape) {
      if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
        fail(where, "got a shape with a negative size or 2^63 bytes or more, expected sizes from 0 and fewer bytes");
      }
    }
    return bytes / static_cast<int64_t>(item_size(tensor.dtype));
  }

  // The part is known to lie inside the tensor, so its size does not overflow.
  void check_place(const CheckpointTensor& tensor, const CheckpointPart& part, const std::string& where) const {
    if (part.file >= manifest_.files.size()) {
      fail(where, "got a part in file number " + std::to_string(part.file) + ", expected one below " +
                      std::to_string(manifest_.files.size()));
    }
    const CheckpointFile& file = manifest_.files[part.file];
    const uint64_t bytes = static_cast<uint64_t>(part.end - part.begin) * item_size(tensor.dtype);
    if (bytes > file.bytes || part.offset > file.bytes - bytes) {
      fail(where, "got a part of " + std::to_string(bytes) + " bytes at offset " + std::to_string(part.offset) +
                      ", expected it to fit into the " + std::to_string(file.bytes) + " bytes of " +
                      in_quotes(file.name));
    }
  }

  // A file gives no more bytes than it has: else a small checkpoint would become large ones without end.
  void check_sums() const {
    std::vector<uint64_t> used(manifest_.files.size());
    for (const CheckpointTensor& tensor : manifest_.tensors) {
      for (const CheckpointPart& part : tensor.parts) {
        const CheckpointFile& file = manifest_.files[part.file];
        used[part.file] += static_cast<uint64_t>(part.end - part.begin) * item_size(tensor.dtype);
        if (used[part.file] > file.bytes) {
          fail("tensor " + in_quotes(tensor.name) + ": ",
               "got parts that share bytes of " + in_quotes(file.name) + ", expected bytes of its own for each");
        }
      }
    }
  }

  const CheckpointManifest& manifest_;
  std::string_view origin_;
  ErrorKind kind_;
};

}  // namespace

void check_manifest(const CheckpointManifest& manifest, std::string_view origin, ErrorKind kind) {
  Checker(manifest, origin, kind).check();
}

}  // namespace fsdp::io
