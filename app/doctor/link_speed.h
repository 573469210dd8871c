#pragma once

#include <string>

#include "app/doctor/finding.h"

namespace fsdp::app {

struct LinkSpeed {
  double bytes_per_second = 0;  // received by a rank
  double call_us = 0;           // of a small call
};

Finding judge_link(const std::string& transport, const LinkSpeed& speed);

}  // namespace fsdp::app
