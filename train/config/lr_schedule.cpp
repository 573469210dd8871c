#include "train/config/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "train/base/format.h"
#include "train/config/batch_ramp.h"

namespace fsdp::train {
namespace {

LrSchedule::Shape shape_of(const std::string& name) {
  if (name == "wsd") return LrSchedule::Shape::kWsd;
  if (name == "linear") return LrSchedule::Shape::kLinear;
  return name == "constant" ? LrSchedule::Shape::kConstant : LrSchedule::Shape::kCosine;
}

double decay_steps_of(const LrSchedule& schedule) {
  const auto wanted = static_cast<double>(schedule.decay_steps);
  const auto steps = static_cast<double>(schedule.steps);
  const double after_warmup = std::max(1.0, steps - static_cast<double>(schedule.warmup_steps));
  return std::clamp(wanted > 0 ? wanted : std::ceil(steps / 10), 1.0, after_warmup);
}

// Part of lr - lr_min that is left at step number n (1 for the first) after the warm-up.
double fraction(const LrSchedule& schedule, double n) {
  const auto warmup = static_cast<double>(schedule.warmup_steps);
  const auto steps = static_cast<double>(schedule.steps);
  const double progress = std::min(1.0, (n - warmup) / std::max(1.0, steps - warmup));
  switch (schedule.shape) {
    case LrSchedule::Shape::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case LrSchedule::Shape::kLinear:
      return 1 - progress;
    case LrSchedule::Shape::kConstant:
      return 1;
    case LrSchedule::Shape::kWsd:
      break;
  }
  const double decay = decay_steps_of(schedule);
  const double decayed = std::clamp((n - (steps - decay)) / decay, 0.0, 1.0);
  return 1 - (schedule.decay == LrSchedule::Decay::kLinear ? decayed : std::sqrt(decayed));
}

}  // namespace

double LrSchedule::at(int64_t step) const {
  const auto n = static_cast<double>(step + 1);
  const auto warmup = static_cast<double>(warmup_steps);
  if (n <= warmup) {
    return lr * n / warmup;
  }
  const double lr_min = min_lr_ratio * lr;
  return lr_min + (lr - lr_min) * fraction(*this, n);
}

std::string describe(const LrSchedule& schedule) {
  std::string text = with_thousands(schedule.steps) + " steps, " + with_thousands(schedule.warmup_steps) +
                     " of warm-up, then " + format_text("%.3g", schedule.lr);
  const std::string end = format_text(" to %.3g", schedule.min_lr_ratio * schedule.lr);
  switch (schedule.shape) {
    case LrSchedule::Shape::kCosine:
      return text + end + " by a cosine";
    case LrSchedule::Shape::kLinear:
      return text + end + " by a line";
    case LrSchedule::Shape::kConstant:
      return text;
    case LrSchedule::Shape::kWsd:
      break;
  }
  return text + end + " in the last " + with_thousands(std::llround(decay_steps_of(schedule))) +
         (schedule.decay == LrSchedule::Decay::kLinear ? " by a line" : " by 1-sqrt");
}

LrSchedule make_schedule(const TrainConfig& config) {
  return {.lr = config.lr,
          .min_lr_ratio = config.min_lr_ratio,
          .warmup_steps = config.warmup_steps,
          .steps = config.steps,
          .shape = shape_of(config.schedule),
          .decay = config.decay == "linear" ? LrSchedule::Decay::kLinear : LrSchedule::Decay::kOneMinusSqrt,
          .decay_steps = config.decay_steps};
}

int64_t tokens_per_step(const Config& config) {
  int64_t tokens = 0;
  const bool overflows = __builtin_mul_overflow(config.train.batch_sequences, config.data.sequence_length, &tokens);
  return overflows ? std::numeric_limits<int64_t>::max() : tokens;
}

TrainConfig resolve_tokens(const Config& config) {
  TrainConfig train = config.train;
  const BatchRamp ramp(train);
  const auto steps_for = [&](int64_t tokens) { return ramp.steps_for((tokens - 1) / config.data.sequence_length + 1); };
  if (train.warmup_tokens > 0) train.warmup_steps = steps_for(train.warmup_tokens);
  if (train.max_tokens > 0) {
    const int64_t steps = steps_for(train.max_tokens);
    train.steps = train.steps == 0 ? steps : std::min(train.steps, steps);
  }
  return train;
}

}  // namespace fsdp::train
