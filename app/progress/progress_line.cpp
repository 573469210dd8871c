#include "app/progress/progress_line.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "fsdp/base/units.h"
#include "train/base/format.h"

namespace fsdp::app {
namespace {

constexpr size_t kCells = 20;
constexpr std::chrono::milliseconds kBetweenDrawings{200};
constexpr std::chrono::milliseconds kBetweenLines{5000};

std::chrono::milliseconds time_between(const train::Console& console) {
  return console.updates_in_place() ? kBetweenDrawings : kBetweenLines;
}

}  // namespace

std::string transfer_line(const std::string& verb, int64_t done, int64_t total, double seconds) {
  const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 1.0;
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
  const double left = rate > 0 ? static_cast<double>(std::max<int64_t>(0, total - done)) / rate : 0;
  std::string bar(kCells, '.');
  std::fill_n(bar.begin(), static_cast<size_t>(kCells * share), '#');
  return train::format_text("%s [%s] %3.0f%% | eta %s | %s of %s | %s/s", verb.c_str(), bar.c_str(), 100 * share,
                            train::clock_text(left).c_str(), format_bytes(done).c_str(), format_bytes(total).c_str(),
                            format_bytes(static_cast<int64_t>(rate)).c_str());
}

ProgressLine::ProgressLine(train::Console& console, std::string verb, int64_t total, Clock::duration every)
    : console_(console),
      verb_(std::move(verb)),
      total_(total),
      begin_(Clock::now()),
      every_(every),
      next_(begin_ + every_) {}

ProgressLine::ProgressLine(train::Console& console, std::string verb, int64_t total)
    : ProgressLine(console, std::move(verb), total, time_between(console)) {}

ProgressLine::~ProgressLine() {
  if (is_drawn_ && console_.updates_in_place()) console_.status("");
}

void ProgressLine::add(int64_t bytes) {
  const int64_t done = done_ += bytes;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + every_;
  is_drawn_ = true;
  console_.status(transfer_line(verb_, done, total_, std::chrono::duration<double>(now - begin_).count()));
}

}  // namespace fsdp::app
