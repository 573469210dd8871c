// manifest.json of a checkpoint. Accepted means: every rule of the header holds, and written again it reads the same.
#include <string>

#include "io/checkpoint/checkpoint_manifest.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {
namespace {

void check_files(const io::CheckpointManifest& manifest) {
  for (const io::CheckpointFile& file : manifest.files) {
    FUZZ_REQUIRE(io::is_plain_file_name(file.name));
    FUZZ_REQUIRE(file.chunks.size() == file.bytes / io::kChunkBytes + (file.bytes % io::kChunkBytes != 0 ? 1 : 0));
  }
}

void check_tensor(const io::CheckpointManifest& manifest, const io::CheckpointTensor& tensor) {
  int64_t position = 0;
  for (const io::CheckpointPart& part : tensor.parts) {
    FUZZ_REQUIRE(part.begin == position && part.end >= part.begin);
    FUZZ_REQUIRE(part.file < manifest.files.size());
    const uint64_t bytes = static_cast<uint64_t>(part.end - part.begin) * io::item_size(tensor.dtype);
    const uint64_t room = manifest.files[part.file].bytes;
    FUZZ_REQUIRE(part.offset <= room && bytes <= room - part.offset);
    position = part.end;
  }
  FUZZ_REQUIRE(position == tensor.numel());
  FUZZ_REQUIRE(manifest.find(tensor.name) == &tensor);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  io::CheckpointManifest manifest;
  if (!fuzz::accepts([&] {
        manifest = io::parse_manifest({reinterpret_cast<const char*>(data), size}, "manifest.json");
      })) {
    return 0;
  }
  fuzz::check_files(manifest);
  for (const io::CheckpointTensor& tensor : manifest.tensors) fuzz::check_tensor(manifest, tensor);
  for (size_t i = 1; i < manifest.tensors.size(); ++i) {
    FUZZ_REQUIRE(manifest.tensors[i - 1].name < manifest.tensors[i].name);
  }
  const std::string written = io::manifest_text(manifest);
  FUZZ_REQUIRE(io::manifest_text(io::parse_manifest(written, "again")) == written);
  return 0;
}
