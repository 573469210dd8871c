// One safetensors file. Accepted means: every tensor is readable, and what a writer makes of it reads back the same.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

// All bytes of a tensor, read in two pieces.
std::string read_tensor(const io::SafetensorsFile& file, const io::TensorEntry& entry) {
  std::string bytes(entry.end - entry.begin, '\0');
  const int64_t middle = entry.numel() / 2;
  file.read(entry, 0, middle, bytes.data());
  file.read(entry, middle, entry.numel() - middle,
            bytes.data() + static_cast<size_t>(middle) * io::item_size(entry.dtype));
  return bytes;
}

// The entries cover the data section without a hole and hold its bytes.
void check_entries(const io::SafetensorsFile& file, std::string_view image) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, image.data(), sizeof(header_bytes));
  const std::string_view data = image.substr(sizeof(header_bytes) + header_bytes);
  uint64_t position = 0;
  for (const io::TensorEntry& entry : file.tensors()) {
    FUZZ_REQUIRE(entry.begin == position && entry.end >= entry.begin && entry.end <= data.size());
    FUZZ_REQUIRE(entry.shape.size() <= 8);
    FUZZ_REQUIRE(file.find(entry.name) == &entry);
    FUZZ_REQUIRE(read_tensor(file, entry) == data.substr(entry.begin, entry.end - entry.begin));
    FUZZ_REQUIRE(!accepts([&] { file.read(entry, entry.numel(), 1, nullptr); }));
    position = entry.end;
  }
  FUZZ_REQUIRE(position == data.size());
}

void check_rewritten(const io::SafetensorsFile& file) {
  static const ScratchFolder folder;
  const std::filesystem::path path = folder / "copy.safetensors";
  std::vector<io::TensorDeclaration> declarations;
  for (const io::TensorEntry& entry : file.tensors()) declarations.push_back({entry.name, entry.dtype, entry.shape});
  io::SafetensorsWriter writer(path, declarations, file.metadata());
  for (const io::TensorEntry& entry : file.tensors()) {
    writer.write(entry.name, 0, entry.numel(), read_tensor(file, entry).data());
  }
  writer.commit();
  FUZZ_REQUIRE(folder.num_files() == 1);
  const io::SafetensorsFile copy = io::SafetensorsFile::open(path);
  FUZZ_REQUIRE(copy.tensors().size() == file.tensors().size() && copy.metadata() == file.metadata());
  for (const io::TensorEntry& entry : file.tensors()) {
    const io::TensorEntry* twin = copy.find(entry.name);
    FUZZ_REQUIRE(twin != nullptr && twin->dtype == entry.dtype && twin->shape == entry.shape);
    FUZZ_REQUIRE(read_tensor(copy, *twin) == read_tensor(file, entry));
  }
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static fuzz::MemoryFile image;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  image.assign(bytes);
  std::unique_ptr<io::SafetensorsFile> file;
  if (!fuzz::accepts([&] { file = std::make_unique<io::SafetensorsFile>(io::SafetensorsFile::open(image.path())); })) {
    return 0;
  }
  fuzz::check_entries(*file, bytes);
  fuzz::check_rewritten(*file);
  return 0;
}
