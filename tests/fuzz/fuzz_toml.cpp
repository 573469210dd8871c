// The training config: a TOML file and, as second part, one override per line. Accepted means: written as TOML it reads
// back unchanged.
#include <string>
#include <vector>

#include "fsdp/base/error.h"
#include "tests/fuzz/bundle.h"
#include "tests/fuzz/cost_gate.h"
#include "tests/fuzz/promises.h"
#include "tests/fuzz/scratch.h"
#include "train/config/config_file.h"

namespace fsdp::fuzz {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace
}  // namespace fsdp::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp;
  const fuzz::CostGate gate(size);
  static fuzz::MemoryFile file;
  const auto parts = fuzz::split_bundle({reinterpret_cast<const char*>(data), size}, 2);
  file.assign(parts[0]);
  train::Config config;
  try {
    config = train::load_config(file.path(), fuzz::lines_of(parts[1]));
  } catch (const Error& error) {
    fuzz::say_reason(error.what());
    FUZZ_REQUIRE(error.code() == ErrorCode::kUsage);
    FUZZ_REQUIRE(fuzz::is_printable(error.what()));
    return 0;
  }
  const std::string written = train::config_to_toml(config);
  file.assign(written);
  FUZZ_REQUIRE(train::config_to_toml(train::load_config(file.path(), {})) == written);
  FUZZ_REQUIRE(train::config_to_toml(train::parse_config(written)) == written);
  return 0;
}
