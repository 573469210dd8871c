#pragma once

#include <string>
#include <vector>

namespace fsdp::app {

// For a process that goes on as another program without exec(): what `ps` and /proc/self/cmdline show of it.
// main() says once where its arguments are; without that nothing is ever shown.
void keep_title_at(int argc, char** argv);

// Cut to the room there is. Overwrites main()'s arguments.
void show_title(const std::vector<std::string>& words);

}  // namespace fsdp::app
