#pragma once

#include "app/doctor/finding.h"

namespace fsdp::app {

// Whether a port can be listened at and reached, and whether this host's name leads to it. Local.
Findings check_network();

// Speed and delay of a link between two ranks of this host over one transport ("shm", "gloo"): starts a launcher with
// two ranks of this program for a moment.
Finding probe_transport(const std::string& transport);

}  // namespace fsdp::app
