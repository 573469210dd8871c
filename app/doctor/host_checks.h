#pragma once

#include <filesystem>

#include "app/doctor/finding.h"

namespace fsdp::app {

// What this host has, by looking: cores, instruction set, memory and its limit, /dev/shm, open files, GPUs. Local;
// takes no time.
Findings check_host();

// Writes and flushes `megabytes` into a file in `folder`, or in the nearest folder above it that exists, and removes
// it. Local.
Finding check_disk(const std::filesystem::path& folder, int megabytes);

}  // namespace fsdp::app
