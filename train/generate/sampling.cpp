#include "train/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fsdp/base/error.h"
#include "kernels/raw/attention/softmax_weights.h"
#include "train/base/format.h"

namespace fsdp::train {
namespace {

constexpr size_t kBlock = 256;            // weights that are summed together
constexpr size_t kFirstCandidates = 128;  // looked at for top-p; most often enough
constexpr size_t kMostInAHeap = 1024;

void check(const char* name, double value, double lowest, double highest, const char* expected) {
  if (value >= lowest && value <= highest) return;
  throw Error(ErrorCode::kUsage,
              "[generate] " + std::string(name) + ": got " + format_text("%g", value) + ", expected " + expected + ".");
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  check("temperature", options.temperature, 0, 1e6, "0 (always the most likely token) or more");
  check("top-k", static_cast<double>(options.top_k), 0, 1e18, "0 (all) or more");
  check("top-p", options.top_p, 1e-12, 1, "more than 0 and at most 1 (all)");
  check("min-p", options.min_p, 0, 1, "0 (all) to 1");
  check("repetition-penalty", options.repetition_penalty, 1e-6, 1e6, "more than 0; 1 is none");
}

void Sampler::saw(int64_t id) { seen_.insert(id); }

std::span<const float> Sampler::penalise(std::span<const float> logits) {
  if (options_.repetition_penalty == 1) return logits;
  penalised_.assign(logits.begin(), logits.end());
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  for (const int64_t id : seen_) {
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) continue;
    float& logit = penalised_[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return penalised_;
}

int64_t Sampler::draw(std::span<const float> all_logits) {
  const std::span<const float> logits = penalise(all_logits);
  const bool is_greedy = options_.temperature == 0;
  weights_.resize(logits.size());
  const int64_t best =
      kernels::raw::softmax_weights(logits.data(), static_cast<int64_t>(logits.size()),
                                    is_greedy ? 1.0f : static_cast<float>(1 / options_.temperature), weights_.data());
  if (best < 0) {
    throw Error(ErrorCode::kNonFinite,
                "[generate] logits: got none above minus infinity. The model's weights are "
                "damaged, or its training diverged.");
  }
  if (is_greedy) return best;
  const bool takes_all_k = options_.top_k == 0 || options_.top_k >= static_cast<int64_t>(logits.size());
  if (takes_all_k && options_.top_p >= 1 && options_.min_p <= 0) return draw_from_all();
  return draw_from(kept(logits, takes_all_k ? logits.size() : static_cast<size_t>(options_.top_k)));
}

// The `count` likeliest ids, the likeliest first.
std::vector<int64_t> Sampler::likeliest(std::span<const float> logits, size_t count) const {
  const auto likelier = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<int64_t> ids;
  if (count > kMostInAHeap) {
    for (size_t i = 0; i < logits.size(); ++i)
      if (logits[i] > -INFINITY) ids.push_back(static_cast<int64_t>(i));
    const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(std::min(count, ids.size()));
    if (middle != ids.end()) std::nth_element(ids.begin(), middle, ids.end(), likelier);
    ids.erase(middle, ids.end());
    std::sort(ids.begin(), ids.end(), likelier);
    return ids;
  }
  for (size_t i = 0; i < logits.size(); ++i) {  // the least likely is in front
    const auto id = static_cast<int64_t>(i);
    if (!(logits[i] > -INFINITY)) continue;
    if (ids.size() == count) {
      if (!likelier(id, ids.front())) continue;
      std::pop_heap(ids.begin(), ids.end(), likelier);
      ids.pop_back();
    }
    ids.push_back(id);
    std::push_heap(ids.begin(), ids.end(), likelier);
  }
  std::sort_heap(ids.begin(), ids.end(), likelier);
  return ids;
}

// The candidates that top-k, then top-p, then min-p leave, the likeliest first.
std::vector<int64_t> Sampler::kept(std::span<const float> logits, size_t most) const {
  const auto weight = [&](int64_t id) { return static_cast<double>(weights_[static_cast<size_t>(id)]); };
  const bool is_cut = most < logits.size();
  size_t count = is_cut ? most : std::min(kFirstCandidates, most);
  for (;;) {
    std::vector<int64_t> ids = likeliest(logits, count);
    const bool has_all = ids.size() < count || count == most;
    double total = 0;
    if (is_cut)
      for (const int64_t id : ids) total += weight(id);
    else
      total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
    double sum = 0;
    size_t end = 0;
    while (end < ids.size() && (end == 0 || options_.top_p >= 1 || sum < options_.top_p * total) &&
           weight(ids[end]) >= options_.min_p * weight(ids[0]))
      sum += weight(ids[end++]);
    if (end < ids.size() || has_all) {
      ids.resize(end);
      return ids;
    }
    count = std::min(8 * count, most);
  }
}

int64_t Sampler::draw_from(const std::vector<int64_t>& ids) {
  cumulative_.clear();
  double sum = 0;
  for (const int64_t id : ids) cumulative_.push_back(sum += weights_[static_cast<size_t>(id)]);
  const auto chosen = std::upper_bound(cumulative_.begin(), cumulative_.end(), uniform() * sum) - cumulative_.begin();
  return ids[std::min(static_cast<size_t>(chosen), ids.size() - 1)];
}

// Like draw_from() all ids in order, but with sums of blocks first.
int64_t Sampler::draw_from_all() {
  cumulative_.clear();
  double sum = 0;
  for (size_t begin = 0; begin < weights_.size(); begin += kBlock) {
    double of_block = 0;
    for (size_t i = begin; i < std::min(begin + kBlock, weights_.size()); ++i) of_block += weights_[i];
    cumulative_.push_back(sum += of_block);
  }
  const double target = uniform() * sum;
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), target) - cumulative_.begin();
  const size_t block = std::min(static_cast<size_t>(found), cumulative_.size() - 1);
  double before = block == 0 ? 0 : cumulative_[block - 1];
  size_t last_possible = block * kBlock;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, weights_.size()); ++i) {
    if (weights_[i] == 0) continue;
    last_possible = i;
    before += weights_[i];
    if (before > target) break;
  }
  return static_cast<int64_t>(last_possible);
}

// In [0, 1). Not std::uniform_real_distribution, whose numbers differ between standard libraries.
double Sampler::uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

}  // namespace fsdp::train
