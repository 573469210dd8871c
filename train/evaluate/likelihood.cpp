#include "train/evaluate/likelihood.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "fsdp/base/error.h"
#include "train/data/packed_split.h"

namespace fsdp::train {
namespace {

// The texts [begin, end), which share a forward.
struct Pack {
  size_t begin, end;
};

std::vector<Pack> make_packs(const std::vector<ScoredText>& texts, int64_t tokens_at_a_time) {
  std::vector<Pack> packs;
  int64_t tokens = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto length = static_cast<int64_t>(texts[i].ids.size());
    if (packs.empty() || tokens + length > tokens_at_a_time) {
      packs.push_back({i, i});
      tokens = 0;
    }
    packs.back().end = i + 1;
    tokens += length;
  }
  return packs;
}

void check(const ScoredText& text, int64_t vocab_size) {
  if (text.first_target < 1 || text.num_targets() < 1) {
    throw Error(ErrorCode::kUsage, "[eval] text: got " + std::to_string(text.ids.size()) +
                                       " tokens, expected one at least after the first.");
  }
  const auto [least, most] = std::minmax_element(text.ids.begin(), text.ids.end());
  if (*least < 0 || *most >= vocab_size) {
    throw Error(ErrorCode::kUsage, "[eval] text: got id " + std::to_string(*least < 0 ? *least : *most) +
                                       ", expected 0 to " + std::to_string(vocab_size - 1) +
                                       ". The tokenizer belongs to another model.");
  }
}

// The texts of one forward, one after another: each is a document.
void score(models::Decoder& decoder, const std::vector<ScoredText>& texts, const Pack& pack, double* sums) {
  std::vector<int64_t> inputs, targets, starts{0};
  for (size_t i = pack.begin; i < pack.end; ++i) {
    const ScoredText& text = texts[i];
    inputs.insert(inputs.end(), text.ids.begin(), text.ids.end() - 1);
    for (size_t place = 1; place < text.ids.size(); ++place)
      targets.push_back(static_cast<int64_t>(place) < text.first_target ? kNoTarget : text.ids[place]);
    starts.push_back(static_cast<int64_t>(inputs.size()));
  }
  models::Sequence sequence;
  sequence.cu_seqlens = at::tensor(starts, at::kLong);
  const c10::Device device = decoder->device();
  const at::Tensor losses = decoder
                                ->token_losses(at::tensor(inputs, at::kLong).unsqueeze(0).to(device),
                                               at::tensor(targets, at::kLong).to(device), sequence)
                                .to(at::kCPU);
  const float* loss = losses.const_data_ptr<float>();
  for (size_t i = pack.begin; i < pack.end; ++i) {
    const float* end = losses.const_data_ptr<float>() + starts[i - pack.begin + 1];
    sums[i] = 0;
    for (; loss != end; ++loss) sums[i] -= *loss;
  }
}

}  // namespace

std::vector<double> log_likelihoods(InferenceModel& model, const std::vector<ScoredText>& texts,
                                    int64_t tokens_at_a_time) {
  if (texts.empty()) return {};
  for (const ScoredText& text : texts) check(text, model.config().vocab_size);
  const std::vector<Pack> packs = make_packs(texts, tokens_at_a_time);
  at::Tensor sums = at::zeros({static_cast<int64_t>(texts.size())}, at::kDouble);
  const auto rank = static_cast<size_t>(model.world().rank), size = static_cast<size_t>(model.world().size);
  for (size_t first = 0; first < packs.size(); first += size) {
    if (first + rank < packs.size())
      score(model.decoder(), texts, packs[first + rank], sums.mutable_data_ptr<double>());
    else
      model.idle_forward();
  }
  if (size > 1) sums = sum_over_ranks(model.world(), sums);
  return {sums.const_data_ptr<double>(), sums.const_data_ptr<double>() + sums.numel()};
}

}  // namespace fsdp::train
