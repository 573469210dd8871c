#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fsdp::comm {

// Waits until something accepts connections at `host`:`port`, for `patience` at most; c10d's own client may take twice
// as long as it was told, and prints stack traces meanwhile. Returns "", or what the system said to the last attempt.
// Looking up a name takes as long as the system lets it.
std::string wait_for_port(const std::string& host, uint16_t port, std::chrono::milliseconds patience);

}  // namespace fsdp::comm
