// A checkpoint: the manifest and its first two files, under the names the manifest gives them. What read_ranges() hands
// out is what the files hold; what verify_chunks() passes can be read.
#include <algorithm>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint_file.h"
#include "io/checkpoint/checkpoint_manifest.h"
#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

constexpr uint64_t kMaxPartBytes = 1 << 16;  // of longer parts only the first bytes are read

// Reads every part of every tensor by itself and compares it with the file.
void check_parts(const ScratchFolder& folder, const io::CheckpointManifest& manifest,
                 const std::vector<std::string>& files, bool is_valid) {
  for (const io::CheckpointTensor& tensor : manifest.tensors) {
    for (const io::CheckpointPart& part : tensor.parts) {
      const uint64_t whole = static_cast<uint64_t>(part.end - part.begin) * io::item_size(tensor.dtype);
      std::string bytes(std::min(whole, kMaxPartBytes), '\0');
      const io::ReadRange range = {part.file, part.offset, bytes.size(), bytes.data()};
      const bool readable = accepts([&] { io::read_ranges(folder.path(), manifest, {range}, 1); });
      FUZZ_REQUIRE(readable || !is_valid);
      if (readable && part.file < files.size() && !bytes.empty()) {
        FUZZ_REQUIRE(files[part.file].compare(part.offset, bytes.size(), bytes) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static const fuzz::ScratchFolder folder;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, 3);
  io::CheckpointManifest manifest;
  if (!fuzz::accepts([&] { manifest = io::parse_manifest(parts[0], "manifest.json"); })) return 0;
  std::vector<std::string> files;
  for (size_t i = 0; i < std::min<size_t>(manifest.files.size(), 2); ++i) {
    if (manifest.files[i].name == io::kManifestName) return 0;
    files.push_back(parts[i + 1]);
    folder.write(manifest.files[i].name, parts[i + 1]);
  }
  folder.write(io::kManifestName, parts[0]);
  FUZZ_REQUIRE(io::manifest_text(io::read_manifest(folder.path())) == io::manifest_text(manifest));
  const bool is_valid = fuzz::accepts([&] { io::verify_chunks(folder.path(), manifest, 0, 1, 1); });
  const bool halves = fuzz::accepts([&] {
    for (int half : {0, 1}) io::verify_chunks(folder.path(), manifest, half, 2, 1);
  });
  FUZZ_REQUIRE(is_valid == halves);
  fuzz::check_parts(folder, manifest, files, is_valid);
  for (size_t i = 0; i < files.size(); ++i) folder.remove(manifest.files[i].name);
  return 0;
}
