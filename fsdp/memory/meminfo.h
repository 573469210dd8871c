#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

// What /proc/meminfo says of "MemTotal", "MemAvailable", ..., in bytes; 0 where it says nothing. Local.
int64_t meminfo_bytes(const std::string& key);

}  // namespace fsdp
