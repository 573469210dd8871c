// A zstd file. What is accepted is what libzstd gives when it has all of it at once: from its call for whole files or,
// where that refuses what its streams accept (libzstd 1.5.4 does with some damaged blocks), from a stream.
#include <zstd.h>

#include <memory>
#include <string>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/streams.h"

namespace fsdp::fuzz {
namespace {

constexpr int kMaxWindowLog = 20;  // a window is paid for in advance: within the gate

// Returns how much of `output` it filled.
size_t decompress_as_stream(std::string_view input, std::string& output) {
  const std::unique_ptr<ZSTD_DStream, decltype(&::ZSTD_freeDStream)> stream(::ZSTD_createDStream(),
                                                                            &::ZSTD_freeDStream);
  ZSTD_inBuffer in{input.data(), input.size(), 0};
  ZSTD_outBuffer out{output.data(), output.size(), 0};
  while (in.pos < in.size && out.pos < out.size) {
    FUZZ_REQUIRE(::ZSTD_isError(::ZSTD_decompressStream(stream.get(), &out, &in)) == 0);
  }
  return out.pos;
}

void check(const MemoryFile& file, std::string_view input) {
  const StreamContent content = read_in_pieces(
      [&] { return io::make_zstd_stream(io::InputFile(file.path(), io::ErrorKind::kData), kMaxWindowLog); });
  if (!content.is_accepted || content.bytes.size() >= kMaxContent) return;
  std::string expected(content.bytes.size() + 1, '\0');
  size_t got = ::ZSTD_decompress(expected.data(), expected.size(), input.data(), input.size());
  if (::ZSTD_isError(got) != 0) got = decompress_as_stream(input, expected);
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
