// A parquet file, read through the plug-in; without it nothing is read. Arrow itself is not instrumented.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/documents.h"
#include "tests/fuzz/scratch.h"
#include "text/documents/parquet_library.h"
#include "text/documents/parquet_reader.h"

namespace fsdp::fuzz {
namespace {

// Loads it, outside of any gate: that alone takes tens of megabytes.
bool has_plugin() {
  ::setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 0);  // the allocator that the gate sees
  try {
    io::parquet_plugin();
    return true;
  } catch (const io::Error& error) {
    std::fprintf(stderr, "nothing is read: %s\n", error.what());
    return false;
  }
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  static const bool ready = fuzz::has_plugin();
  if (!ready) return 0;
  static fuzz::MemoryFile file;
  file.assign({reinterpret_cast<const char*>(data), size});
  const fuzz::CostGate gate(size);
  fuzz::read_both_ways({}, [&](const io::DocumentOptions& options) {
    return io::open_parquet_reader(file.path(), options, /*max_memory=*/int64_t{32} << 20);
  });
  return 0;
}
