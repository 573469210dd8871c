#pragma once

#include <filesystem>

namespace fsdp::report {

// Whether a trainer of this machine works in the folder: whether its `.lock` is held. Looks at the system's table of
// locks, since trying the lock might keep out a trainer that starts at this moment. False where that is not known.
bool is_locked(const std::filesystem::path& folder);

}  // namespace fsdp::report
