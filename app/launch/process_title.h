#pragma once

#include <string>
#include <vector>

namespace fsdp::app {

// For a process that goes on as another program without exec(): what `ps`, /proc/self/cmdline and /proc/self/environ
// show of it. main() says once, before anything changes the environment, where the system has put both; without that
// nothing is ever shown.
void keep_title_at(int argc, char** argv, char** environment);

// Cut to the room there is. Overwrites main()'s arguments and environment: nothing may point there any more.
void show_title(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);

}  // namespace fsdp::app
