#include "train/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace fsdp::train {
namespace {

int64_t sample(const at::Tensor& logits_V, const GenerationOptions& options, std::mt19937_64& random) {
  const at::Tensor values = logits_V.to(at::kDouble).contiguous();
  const double* logit = values.const_data_ptr<double>();
  std::vector<int64_t> ids(static_cast<size_t>(values.numel()));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto likelier = [logit](int64_t a, int64_t b) {
    return logit[a] > logit[b] || (logit[a] == logit[b] && a < b);
  };
  if (options.temperature == 0) {
    return *std::min_element(ids.begin(), ids.end(), likelier);
  }
  if (options.top_k > 0 && options.top_k < values.numel()) {
    std::nth_element(ids.begin(), ids.begin() + options.top_k - 1, ids.end(), likelier);
    ids.resize(static_cast<size_t>(options.top_k));
  }
  const double largest = logit[*std::min_element(ids.begin(), ids.end(), likelier)];
  std::vector<double> cumulative;
  double sum = 0;
  for (const int64_t id : ids) {
    sum += std::exp((logit[id] - largest) / options.temperature);
    cumulative.push_back(sum);
  }
  // Not std::uniform_real_distribution, whose numbers differ between standard libraries.
  const double target = sum * static_cast<double>(random() >> 11) * 0x1p-53;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), target) - cumulative.begin();
  return ids[std::min(static_cast<size_t>(chosen), ids.size() - 1)];
}

}  // namespace

void generate(models::Decoder& model, const std::vector<int64_t>& prompt, const std::vector<int64_t>& stop_ids,
              const GenerationOptions& options, const std::function<void(int64_t)>& emit) {
  std::mt19937_64 random(options.seed);
  models::DecoderCache cache;
  at::Tensor input_ids_BT = at::tensor(prompt, at::kLong).unsqueeze(0);
  for (int64_t count = 0; count < options.max_tokens; ++count) {
    const at::Tensor logits_BTV = model->forward_cached(input_ids_BT, cache);
    const int64_t id = sample(logits_BTV.select(0, 0).select(0, -1), options, random);
    if (std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end()) {
      return;
    }
    emit(id);
    input_ids_BT = at::full({1, 1}, id, at::kLong);
  }
}

}  // namespace fsdp::train
