#pragma once

#include <cstdint>
#include <string>

namespace fsdp::comm {

// Bytes of all last-level caches of this host, each counted once, as the kernel lists them (the C library's number is
// that of the processor's manual, which virtual machines get wrong); the largest number where it lists none. Local.
int64_t processor_cache_bytes(const std::string& cpus = "/sys/devices/system/cpu");

}  // namespace fsdp::comm
