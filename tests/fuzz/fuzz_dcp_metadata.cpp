// `.metadata` of a checkpoint of torch.distributed.checkpoint. Accepted means: the chunks of every tensor cover it
// once, and small tensors can be put together from them, whatever the pieces they are read in.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "io/base/shape.h"
#include "io/dcp/dcp_chunks.h"
#include "io/dcp/dcp_metadata.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {
namespace {

constexpr int64_t kSmallNumel = 4096;
constexpr size_t kSmallChunks = 64;

// Numbers of the tensor's elements that a chunk holds, in the order of the chunk.
std::vector<int32_t> elements_of(const std::vector<int64_t>& shape, const io::DcpChunk& chunk) {
  std::vector<int32_t> elements;
  std::vector<int64_t> index(shape.size(), 0);
  for (;;) {
    int64_t number = 0;
    for (size_t k = 0; k < shape.size(); ++k) number = number * shape[k] + chunk.offsets[k] + index[k];
    elements.push_back(static_cast<int32_t>(number));
    size_t k = shape.size();
    while (k > 0 && ++index[k - 1] == chunk.sizes[k - 1]) index[--k] = 0;
    if (k == 0) return elements;
  }
}

// Reads the tensor run by run, as a converter does, with the number of each element as its value.
void check_assembly(const io::DcpTensor& tensor, int64_t max_elements) {
  std::vector<int32_t> whole;
  for (const io::TensorRun& run : io::cut_into_runs(tensor.shape, max_elements)) {
    FUZZ_REQUIRE(run.first == static_cast<int64_t>(whole.size()) && run.count > 0 && run.count <= max_elements);
    std::vector<int32_t> values(static_cast<size_t>(run.count), -1);
    for (const io::DcpChunk& chunk : tensor.chunks) {
      const io::ChunkPart part(tensor.shape, run, chunk);
      if (part.count() == 0) continue;
      const std::vector<int32_t> elements = elements_of(tensor.shape, chunk);
      FUZZ_REQUIRE(part.first_in_chunk() >= 0 &&
                   part.first_in_chunk() + part.count() <= static_cast<int64_t>(elements.size()));
      part.scatter(elements.data() + part.first_in_chunk(), sizeof(int32_t), values.data());
    }
    whole.insert(whole.end(), values.begin(), values.end());
  }
  std::vector<int32_t> expected(static_cast<size_t>(tensor.numel()));
  std::iota(expected.begin(), expected.end(), 0);
  FUZZ_REQUIRE(whole == expected);
}

void check_tensor(const io::DcpMetadata& metadata, const io::DcpTensor& tensor) {
  FUZZ_REQUIRE(metadata.find(tensor.name) == &tensor);
  int64_t covered = 0;
  for (const io::DcpChunk& chunk : tensor.chunks) {
    FUZZ_REQUIRE(chunk.file < metadata.files.size());
    FUZZ_REQUIRE(chunk.sizes.size() == tensor.shape.size() && chunk.offsets.size() == tensor.shape.size());
    for (size_t k = 0; k < tensor.shape.size(); ++k) {
      FUZZ_REQUIRE(chunk.offsets[k] >= 0 && chunk.sizes[k] > 0 && chunk.sizes[k] <= tensor.shape[k]);
      FUZZ_REQUIRE(chunk.offsets[k] <= tensor.shape[k] - chunk.sizes[k]);
    }
    covered += *io::checked_numel(chunk.sizes);
  }
  FUZZ_REQUIRE(covered == tensor.numel());
  if (tensor.numel() > kSmallNumel || tensor.chunks.size() > kSmallChunks) return;
  for (const int64_t max_elements : std::array<int64_t, 3>{1, 7, kSmallNumel}) check_assembly(tensor, max_elements);
}

// Small files cost little: no byte of theirs is in two chunks.
void check_archives(const io::DcpMetadata& metadata) {
  std::vector<const io::DcpChunk*> chunks;
  for (const io::DcpTensor& tensor : metadata.tensors)
    for (const io::DcpChunk& chunk : tensor.chunks) chunks.push_back(&chunk);
  if (chunks.size() > kSmallChunks) return;
  for (const io::DcpChunk* a : chunks) {
    for (const io::DcpChunk* b : chunks) {
      const bool apart = a == b || a->file != b->file || a->offset - b->offset >= b->length;
      FUZZ_REQUIRE(a->offset < b->offset || apart);
    }
  }
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  io::DcpMetadata metadata;
  if (!fuzz::accepts([&] {
        metadata = io::parse_dcp_metadata(std::string(reinterpret_cast<const char*>(data), size), ".metadata");
      })) {
    return 0;
  }
  for (const std::string& file : metadata.files) FUZZ_REQUIRE(io::is_plain_file_name(file));
  FUZZ_REQUIRE(std::is_sorted(metadata.objects.begin(), metadata.objects.end()));
  for (size_t i = 0; i < metadata.tensors.size() && i < fuzz::kSmallChunks; ++i) {
    fuzz::check_tensor(metadata, metadata.tensors[i]);
  }
  fuzz::check_archives(metadata);
  return 0;
}
