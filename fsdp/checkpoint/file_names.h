#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::checkpoint {

// "rank-00001-of-00004.safetensors"
std::string file_name(int rank, int world_size);

// N of a folder named `step-<N>`; Error(kUsage) for another name.
int64_t step_of(const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
