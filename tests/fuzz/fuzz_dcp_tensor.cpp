// One tensor as torch.save writes it, an archive that may lie anywhere in a .distcp file. Accepted means: the bytes of
// the tensor are there, and they are the same wherever the archive lies.
#include <optional>
#include <string>

#include "io/torch_archive/saved_tensor.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"

namespace fsdp::fuzz {
namespace {

constexpr std::string_view kBefore = "other archive";
constexpr std::string_view kAfter = "next archive";

std::optional<io::SavedTensor> find_tensor(const std::string& bytes, uint64_t begin, uint64_t length) {
  static MemoryFile image;
  image.assign(bytes);
  const io::InputFile file(image.path(), io::ErrorKind::kModel);
  std::optional<io::SavedTensor> tensor;
  accepts([&] { tensor = io::find_saved_tensor(file, begin, length); });
  return tensor;
}

void check_tensor(const io::SavedTensor& tensor, uint64_t length) {
  FUZZ_REQUIRE(tensor.shape.size() <= 8);
  uint64_t bytes = io::item_size(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    FUZZ_REQUIRE(size >= 0);
    if (size == 0) FUZZ_REQUIRE(tensor.bytes == 0);
    if (tensor.bytes != 0) FUZZ_REQUIRE(!__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes));
  }
  FUZZ_REQUIRE(tensor.bytes == 0 || tensor.bytes == bytes);
  FUZZ_REQUIRE(tensor.begin <= length && tensor.bytes <= length - tensor.begin);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp::fuzz;
  const CostGate gate(size);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto alone = find_tensor(bytes, 0, size);
  const auto inside = find_tensor(std::string(kBefore) + bytes + std::string(kAfter), kBefore.size(), size);
  FUZZ_REQUIRE(alone.has_value() == inside.has_value());
  if (!alone) return 0;
  check_tensor(*alone, size);
  FUZZ_REQUIRE(inside->begin == alone->begin + kBefore.size() && inside->bytes == alone->bytes);
  FUZZ_REQUIRE(inside->shape == alone->shape && inside->dtype == alone->dtype && inside->crc32 == alone->crc32);
  return 0;
}
