#include "io/base/crc32.h"

#include <array>
#include <cstring>

namespace fsdp::io {

namespace {

// kTables[k][b]: what byte b does to the CRC, k bytes further on. After: Intel's "slicing-by-8".
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0u);
    tables[0][byte] = crc;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < 8; ++k) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xFF];
  }
  return tables;
}();

}  // namespace

uint32_t crc32(uint32_t crc, const void* data, size_t num_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; num_bytes >= 8; num_bytes -= 8, bytes += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> (8 * k) & 0xFF];
  }
  for (; num_bytes > 0; --num_bytes, ++bytes) crc = crc >> 8 ^ kTables[0][(crc ^ *bytes) & 0xFF];
  return ~crc;
}

}  // namespace fsdp::io
