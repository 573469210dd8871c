#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "train/data/packed_split.h"
#include "train/model/parallelize.h"
#include "train/preference/preference_loss.h"

namespace fsdp::train {

// Log-probabilities of the answers of all pairs of a split by the model that a training starts from.
class References {
 public:
  References() = default;
  explicit References(std::vector<AnswerLogs> logs) : logs_(std::move(logs)) {}
  // COLLECTIVE. By the weights that the model has now, one pair after the other, dealt out to the ranks: the same for
  // any number of them.
  static References compute(ShardedModel& model, const World& world, const PackedSplit& split);
  // COLLECTIVE. What is in `file` if that is whole and of `identity`, as rank 0 finds it; else computed, and written by
  // rank 0, which tells a failure to do so and goes on.
  static References find_or_compute(ShardedModel& model, const World& world, const PackedSplit& split,
                                    const std::filesystem::path& file, const std::string& identity,
                                    const std::function<void(const std::string& line)>& tell);

  const AnswerLogs& of(int64_t sequence) const { return logs_[static_cast<size_t>(sequence)]; }
  size_t size() const { return logs_.size(); }

 private:
  std::vector<AnswerLogs> logs_;
};

}  // namespace fsdp::train
