#pragma once

#include <string>

namespace fsdp::comm {

// Which build of the library this process runs, and as part of which program: the version, then what the linker noted
// in the library and in the program (for the fsdp program: and in the library of its verbs) about their contents (the
// first 16 hex digits of each; "none" without such a note). Equal wherever the same files run.
std::string build_id();

}  // namespace fsdp::comm
