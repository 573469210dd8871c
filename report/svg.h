#pragma once

#include <string>

namespace fsdp::report {

// A coordinate: two digits after the point, which is finer than a screen.
std::string pixel(double value);

// Attributes of the <path> that draws the sign of an event around 0,0; "" where there is none.
std::string sign_path(const std::string& kind);

// A <path> of the mark of a run, centred at (x, y).
std::string run_mark(int run, double x, double y, const char* style);

}  // namespace fsdp::report
