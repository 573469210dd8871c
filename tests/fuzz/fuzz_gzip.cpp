// A gzip file. What is accepted is what zlib's own reader of files gives, which takes zeros behind a member for the
// end; as Python's we go on behind them.
#include <zlib.h>

#include <string>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/scratch.h"
#include "tests/fuzz/streams.h"

namespace fsdp::fuzz {
namespace {

std::string read_with_zlib(const std::filesystem::path& path) {
  const gzFile file = ::gzopen(path.c_str(), "rb");
  FUZZ_REQUIRE(file != nullptr);
  std::string bytes(kMaxContent + (size_t{1} << 20), '\0');
  const int got = ::gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  FUZZ_REQUIRE(got >= 0);
  bytes.resize(static_cast<size_t>(got));
  ::gzclose(file);
  return bytes;
}

void check(const MemoryFile& file) {
  const StreamContent content =
      read_in_pieces([&] { return io::make_gzip_stream(io::InputFile(file.path(), io::ErrorKind::kData)); });
  if (!content.is_accepted || content.bytes.size() >= kMaxContent) return;
  FUZZ_REQUIRE(content.bytes.starts_with(read_with_zlib(file.path())));
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fsdp::fuzz::MemoryFile file;
  const fsdp::fuzz::CostGate gate(size);
  file.assign({reinterpret_cast<const char*>(data), size});
  fsdp::fuzz::check(file);
  return 0;
}
