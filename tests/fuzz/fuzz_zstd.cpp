// A zstd file. What is accepted is what libzstd gives when it has all of it at once.
#include <zstd.h>

#include <string>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/streams.h"

namespace fsdp::fuzz {
namespace {

constexpr int kMaxWindowLog = 20;  // a window is paid for in advance: within the gate

void check(const MemoryFile& file, std::string_view input) {
  const StreamContent content = read_in_pieces(
      [&] { return io::make_zstd_stream(io::InputFile(file.path(), io::ErrorKind::kData), kMaxWindowLog); });
  if (!content.is_accepted || content.bytes.size() >= kMaxContent) return;
  std::string expected(content.bytes.size() + 1, '\0');
  const size_t got = ::ZSTD_decompress(expected.data(), expected.size(), input.data(), input.size());
  FUZZ_REQUIRE(::ZSTD_isError(got) == 0);
  expected.resize(got);
  FUZZ_REQUIRE(expected == content.bytes);
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fsdp::fuzz::MemoryFile file;
  const fsdp::fuzz::CostGate gate(size);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  file.assign(input);
  fsdp::fuzz::check(file, input);
  return 0;
}
