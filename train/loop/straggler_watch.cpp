#include "train/loop/straggler_watch.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "fsdp/comm/liveness/wait_clock.h"

namespace fsdp::train {
namespace {

std::string encode(const std::vector<double>& numbers) {
  std::ostringstream text;
  for (const double number : numbers) text << number << ' ';
  return text.str();
}

std::vector<double> decode(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream words(text);
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

// `ranks`: the computing times of each.
SlowestRank find_slowest(const std::vector<std::vector<double>>& ranks) {
  std::vector<double> sums;
  for (const std::vector<double>& times : ranks) sums.push_back(std::accumulate(times.begin(), times.end(), 0.0));
  const auto most = std::max_element(sums.begin(), sums.end());
  const double others = (std::accumulate(sums.begin(), sums.end(), 0.0) - *most) / static_cast<double>(sums.size() - 1);
  return {static_cast<int>(most - sums.begin()), others > 0 ? *most / others - 1 : 0};
}

}  // namespace

StragglerWatch::StragglerWatch(const World& world, int64_t every) : world_(world), every_(every), report_(world.size) {}

void StragglerWatch::begin_step() {
  begin_ = std::chrono::steady_clock::now();
  waited_before_ = comm::waited_by_this_thread();
}

void StragglerWatch::end_step() {
  const auto waited = comm::waited_by_this_thread() - waited_before_;
  const std::chrono::duration<double, std::milli> computed = std::chrono::steady_clock::now() - begin_ - waited;
  compute_ms_.push_back(computed.count());
}

std::vector<std::string> StragglerWatch::compare() {
  const bool due = every_ > 0 && world_.size > 1 && static_cast<int64_t>(compute_ms_.size()) >= every_;
  if (!due) return {};
  std::vector<std::vector<double>> ranks;
  for (const std::string& text : gather_strings(world_, encode(compute_ms_))) ranks.push_back(decode(text));
  std::vector<std::string> changes;
  for (size_t step = 0; step < compute_ms_.size(); ++step) {
    std::vector<double> row;
    for (const auto& times : ranks) row.push_back(times.at(step));
    for (std::string& change : report_.add_step(row)) changes.push_back(std::move(change));
  }
  slowest_ = find_slowest(ranks);
  compute_ms_.clear();
  return changes;
}

}  // namespace fsdp::train
