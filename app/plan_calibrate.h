#pragma once

#include "app/verbs.h"

namespace fsdp::app {

// `fsdp plan calibrate`: measures this machine and writes the file that --hardware reads. Apart from `fsdp plan`, which
// needs no LibTorch.
int run_plan_calibrate(const Arguments& arguments);

}  // namespace fsdp::app
