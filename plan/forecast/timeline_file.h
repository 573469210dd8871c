#pragma once

#include <string>

#include "plan/forecast/forecast.h"

namespace fsdp::plan {

// By the file's extension: .json for ui.perfetto.dev, .svg for a browser or a document.
enum class TimelineFormat { kChromeTrace, kPicture };

// Throws io::Error(kUsage) that names both for any other extension.
TimelineFormat timeline_format(const std::string& path);

// What the file holds: the simulated microbatches of the forecast, event by event. `title`: of a picture.
std::string timeline_text(const Forecast& forecast, TimelineFormat format, const std::string& title);

}  // namespace fsdp::plan
