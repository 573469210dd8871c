#pragma once

#include <string>

#include "plan/time/step_time.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

// The step as a picture: a row for what is computed and a row for each lane, waits in between, the critical path below,
// time from left to right. SVG without references to anything else; readable on a light and on a dark page. Each bar
// says what it is when the pointer rests on it. `title` is text, of any kind.
std::string to_svg(const StepTime& time, const StepWork& work, const std::string& title);

}  // namespace fsdp::plan::time
