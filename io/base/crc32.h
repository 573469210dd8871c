#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::io {

// CRC-32 as zip files use it (polynomial 0x04C11DB7, reflected). `crc` is the value of the bytes before, 0 at the
// start.
uint32_t crc32(uint32_t crc, const void* data, size_t num_bytes);

}  // namespace fsdp::io
