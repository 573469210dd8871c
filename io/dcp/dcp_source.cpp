#include "io/dcp/dcp_source.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/base/crc32.h"
#include "io/base/error.h"
#include "io/base/input_file.h"
#include "io/dcp/dcp_chunks.h"
#include "io/dcp/dcp_metadata.h"
#include "io/torch_archive/saved_tensor.h"

namespace fsdp::io {

namespace {

constexpr int64_t kRunBytes = int64_t{16} << 20;
constexpr size_t kMaxOpenFiles = 64;

// Files of a checkpoint, opened when needed; a few stay open.
class OpenFiles {
 public:
  OpenFiles(const std::filesystem::path& folder, const std::vector<std::string>& names)
      : folder_(folder), names_(names) {}

  const InputFile& get(uint32_t index) {
    auto found = files_.find(index);
    if (found == files_.end()) {
      if (files_.size() >= kMaxOpenFiles) files_.clear();
      found = files_.emplace(index, InputFile(folder_ / names_[index], ErrorKind::kModel)).first;
    }
    return found->second;
  }

 private:
  const std::filesystem::path& folder_;
  const std::vector<std::string>& names_;
  std::map<uint32_t, InputFile> files_;
};

// Puts a tensor together from its chunks, run by run. Every chunk is read from front to back exactly once, so that its
// CRC can be checked on the way.
class ChunkedReader {
 public:
  ChunkedReader(const DcpTensor& tensor, OpenFiles& files) : tensor_(tensor), files_(files) {
    for (const DcpChunk& chunk : tensor.chunks) chunks_.push_back(find(chunk));
  }

  void read(const std::function<void(int64_t first, int64_t count, const void* elements)>& sink) {
    const size_t item = item_size(*tensor_.dtype);
    ChunkWindow window(tensor_);
    for (const TensorRun& run : cut_into_runs(tensor_.shape, kRunBytes / static_cast<int64_t>(item))) {
      run_.resize(static_cast<size_t>(run.count) * item);
      for (const size_t i : window.move_to(run)) read_part(i, ChunkPart(tensor_.shape, run, tensor_.chunks[i]));
      sink(run.first, run.count, run_.data());
    }
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].saved.crc32 && *chunks_[i].saved.crc32 != chunks_[i].crc32) {
        fail(tensor_.chunks[i], "got elements with another CRC than the archive says. The file is damaged");
      }
    }
  }

 private:
  struct Chunk {
    SavedTensor saved;
    uint32_t crc32 = 0;  // of what was read so far
  };

  Chunk find(const DcpChunk& chunk) const {
    Chunk found{.saved = find_saved_tensor(files_.get(chunk.file), chunk.offset, chunk.length)};
    if (found.saved.dtype != *tensor_.dtype || found.saved.shape != chunk.sizes) {
      fail(chunk, "got a tensor of another dtype or shape than .metadata says. The files do not belong together");
    }
    return found;
  }

  void read_part(size_t index, const ChunkPart& part) {
    if (part.count() == 0) return;
    Chunk& chunk = chunks_[index];
    const size_t item = item_size(*tensor_.dtype);
    const size_t num_bytes = static_cast<size_t>(part.count()) * item;
    const std::optional<int64_t> place = part.first_in_run();
    if (!place) part_.resize(num_bytes);
    char* out = place ? run_.data() + static_cast<size_t>(*place) * item : part_.data();
    files_.get(tensor_.chunks[index].file)
        .read_at(chunk.saved.begin + static_cast<uint64_t>(part.first_in_chunk()) * item, out, num_bytes);
    chunk.crc32 = crc32(chunk.crc32, out, num_bytes);
    if (!place) part.scatter(out, item, run_.data());
  }

  [[noreturn]] void fail(const DcpChunk& chunk, const std::string& detail) const {
    throw files_.get(chunk.file)
        .error("dcp", "tensor " + in_quotes(tensor_.name) + ", archive at byte " + std::to_string(chunk.offset) + ": " +
                          detail + ".");
  }

  const DcpTensor& tensor_;
  OpenFiles& files_;
  std::vector<Chunk> chunks_;
  std::vector<char> run_;
  std::vector<char> part_;
};

class DcpSource final : public WeightSource {
 public:
  explicit DcpSource(const std::filesystem::path& folder) : WeightSource(folder), metadata_(read_dcp_metadata(folder)) {
    for (const DcpTensor& tensor : metadata_.tensors) {
      tensors_.push_back({tensor.name, tensor.shape, tensor.dtype, "torch." + std::string(tensor.type)});
    }
    left_out_ = metadata_.objects;
    description_ = "DCP checkpoint of " + std::to_string(metadata_.files.size()) + " file(s)";
  }

  void read(const std::vector<size_t>& wanted, const PieceSink& sink) const override {
    OpenFiles files(path_, metadata_.files);
    for (const size_t index : wanted) {
      ChunkedReader reader(metadata_.tensors[index], files);
      reader.read([&](int64_t first, int64_t count, const void* elements) { sink(index, first, count, elements); });
    }
  }

 private:
  const DcpMetadata metadata_;
};

}  // namespace

std::unique_ptr<WeightSource> open_dcp_source(const std::filesystem::path& folder) {
  return std::make_unique<DcpSource>(folder);
}

}  // namespace fsdp::io
