#include "plan/forecast/timeline_file.h"

#include <filesystem>

#include "io/base/error.h"
#include "plan/time/chrome_trace.h"
#include "plan/time/timeline_picture.h"

namespace fsdp::plan {

TimelineFormat timeline_format(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".json") return TimelineFormat::kChromeTrace;
  if (extension == ".svg") return TimelineFormat::kPicture;
  throw io::Error(io::ErrorKind::kUsage,
                  "[plan] timeline: got " + io::in_quotes(path) +
                      ", expected a name that ends in .json (a trace for ui.perfetto.dev) or .svg (a picture).");
}

std::string timeline_text(const Forecast& forecast, TimelineFormat format, const std::string& title) {
  const time::StepTime simulated = time::predict(forecast.work, forecast.hardware);
  if (format == TimelineFormat::kChromeTrace) return time::to_chrome_trace(simulated.timeline, forecast.work);
  const bool is_whole = forecast.work.microbatches == forecast.microbatches;
  const std::string part = is_whole ? "" : " (" + std::to_string(forecast.work.microbatches) + " microbatches)";
  return time::to_svg(simulated, forecast.work, title + part);
}

}  // namespace fsdp::plan
