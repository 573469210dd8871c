#include "train/loop/spike_detector.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

// The lower one of two in the middle. Reorders `values`.
double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr double kLossPart = 1.0 / 200;
constexpr double kNormPart = 1.0 / 10;

double limit_of(const std::deque<double>& history, double threshold, double part) {
  std::vector<double> values(history.begin(), history.end());
  const double middle = median(values);
  for (double& value : values) value = std::abs(value - middle);
  return middle + threshold * std::max(median(values), part * std::abs(middle));
}

std::deque<double> numbers(const nlohmann::json& object, const char* key) {
  std::deque<double> values;
  for (const auto& value : object.at(key)) values.push_back(value.get<double>());
  return values;
}

}  // namespace

std::optional<Spike> SpikeDetector::check(double loss, double grad_norm) const {
  if (window_ == 0 || losses_.size() < window_) return std::nullopt;
  const Spike spike{limit_of(losses_, threshold_, kLossPart), limit_of(grad_norms_, threshold_, kNormPart)};
  if (loss <= spike.loss_limit && grad_norm <= spike.grad_norm_limit) return std::nullopt;
  return spike;
}

void SpikeDetector::add(double loss, double grad_norm) {
  losses_.push_back(loss);
  grad_norms_.push_back(grad_norm);
  while (losses_.size() > window_) losses_.pop_front();
  while (grad_norms_.size() > window_) grad_norms_.pop_front();
}

std::string SpikeDetector::to_json() const {
  return nlohmann::json{{"loss", losses_}, {"grad_norm", grad_norms_}}.dump();
}

void SpikeDetector::restore(const std::string& json) {
  std::deque<double> losses, grad_norms;
  try {
    if (!json.empty()) {
      const auto object = nlohmann::json::parse(json);
      losses = numbers(object, "loss");
      grad_norms = numbers(object, "grad_norm");
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint, std::string("[checkpoint] run: last_steps: got ") + error.what() +
                                            ", expected losses and gradient norms. Resume from another checkpoint.");
  }
  if (losses.size() != grad_norms.size()) {
    throw Error(ErrorCode::kCheckpoint, "[checkpoint] run: last_steps: got " + std::to_string(losses.size()) +
                                            " losses and " + std::to_string(grad_norms.size()) +
                                            " gradient norms, expected as many. Resume from another checkpoint.");
  }
  losses_.clear();
  grad_norms_.clear();
  for (size_t i = 0; i < losses.size(); ++i) add(losses[i], grad_norms[i]);
}

}  // namespace fsdp::train
