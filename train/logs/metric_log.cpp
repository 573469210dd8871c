#include "train/logs/metric_log.h"

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

// "memory/params"; what stands alone belongs to the training: "train/loss".
std::string tag_of(const std::vector<std::string>& path) {
  std::string tag = path.size() == 1 ? "train" : "";
  for (const std::string& key : path) tag += (tag.empty() ? "" : "/") + key;
  return tag;
}

}  // namespace

MetricLog::MetricLog(const OutputFolder& folder, const OutputConfig& config, int64_t last_step)
    : lines_(folder.metrics(), last_step == 0 ? -1 : last_step) {
  if (last_step == 0) EventFile::remove_all(folder.tensorboard());
  if (config.tensorboard) events_.emplace(folder.tensorboard(), last_step);
  if (!config.prometheus.empty()) {
    prometheus_.emplace(config.prometheus, config.folder);
    prometheus_->write({.step = last_step, .numbers = {}});  // a path that cannot be written is told now
  }
}

void MetricLog::append(const std::string& json) {
  lines_.append(json);
  if (!events_ && !prometheus_) return;
  const StepNumbers numbers = named_numbers(json);
  if (events_) {
    for (const NamedNumber& number : numbers.numbers) events_->add(numbers.step, tag_of(number.path), number.value);
  }
  if (prometheus_) write_prometheus(numbers);
}

// A place for monitoring that fails is no reason to stop a training: a file that grows old is what alarms are for.
void MetricLog::write_prometheus(const StepNumbers& numbers) {
  try {
    prometheus_->write(numbers);
  } catch (const Error&) {
  }
}

void MetricLog::go_back_to(int64_t step) {
  lines_.go_back_to(step);
  if (events_) events_->go_back_to(step);
}

}  // namespace fsdp::train
